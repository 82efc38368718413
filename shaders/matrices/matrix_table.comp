// Finds out which element each invocation of a subgroup holds at each position of a matrix. To do so, it loads matrices
// whose elements are their own indices. Runs as one workgroup of one subgroup.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "matrices/units.glsl"

layout(local_size_x_id = kMatrixSubgroup) in;
layout(push_constant, std430) uniform Push { TablePush p; };

shared float16_t numbers[block_elements];

void put(uint at, uint value) { Words(p.table + Address(at) * 4).value = value; }

void main() {
    uint lane = gl_SubgroupInvocationID;
    for (uint i = lane; i < block_elements; i += subgroup) numbers[i] = float16_t(i);
    barrier();
    LeftMatrix left;
    coopMatLoad(left, numbers, 0, side, gl_CooperativeMatrixLayoutRowMajor);
    RightMatrix right;   // column n has elements n * side + k
    coopMatLoad(right, numbers, 0, side, gl_CooperativeMatrixLayoutColumnMajor);
    [[unroll]] for (uint i = 0; i < kMatrixElements; ++i) {
        uint position = lane * kMatrixElements + i;
        uint element = uint(left[i]);
        put(left_elements + position, element);
        put(left_positions + element, position);
        element = uint(right[i]);
        put(right_elements + position, element);
        put(right_positions + element, position);
    }
}
