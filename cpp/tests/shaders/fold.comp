// state = state * 5 + step: tells whether every step ran, and in which order.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

layout(local_size_x_id = 0) in;

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { uint at[]; };
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Params { uint64_t state; };
layout(push_constant) uniform Push {
    uint64_t params;
    int step;
};

void main() {
    if (gl_GlobalInvocationID.x == 0) {
        Words state = Words(Params(params).state);
        state.at[0] = state.at[0] * 5u + uint(step);
    }
}
