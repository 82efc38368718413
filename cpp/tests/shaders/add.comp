// to[i] = from[i] + kAmount, for i < count.
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

layout(local_size_x = 64) in;
layout(constant_id = 0) const uint kAmount = 1;

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { uint at[]; };
layout(push_constant) uniform Push {
    uint64_t from, to;
    uint count;
};

void main() {
    const uint i = gl_GlobalInvocationID.x;
    if (i < count) {
        Words(to).at[i] = Words(from).at[i] + kAmount;
    }
}
