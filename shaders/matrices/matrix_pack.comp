// Blocks of an operand from float32 numbers: see MatrixPackPush.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "matrices/units.glsl"

layout(local_size_x = kElementwiseGroup) in;
layout(constant_id = kStepConstants + 3u) const uint right = 0;   // 1: the right operand
layout(push_constant, std430) uniform Push { MatrixPackPush p; };

void main() {
    uint at = (gl_WorkGroupID.y * kGroupsInX + gl_WorkGroupID.x) * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    uint lane = at % subgroup, block = at / subgroup, k_block = block % p.k_blocks, i_block = block / p.k_blocks;
    if (i_block >= p.i_blocks) return;
    uint batch = gl_WorkGroupID.z;
    float down = scale_down(Words(p.largest).value);
    uvec4 high, low;
    [[unroll]] for (uint word = 0; word < 4; ++word) {
        high[word] = low[word] = 0;
        [[unroll]] for (uint e = 0; e < 2; ++e) {
            uint part = right != 0 ? right_elements : left_elements;
            uint element = table_entry(p.table, part + lane * kMatrixElements + 2 * word + e);
            uint i = i_block * side + element / side, k = k_block * side + element % side, slot = 0;
            bool there = k % p.run_padded < p.run_length;
            if (p.units != 0) {
                uint column = i % p.columns;
                there = there && column < p.units * p.products;
                slot = p.gate_order >> (4 * (column % p.products)) & 15;
                i = i / p.columns * p.units + column / p.products;
            }
            float value = 0.0;
            if (there && i < p.i_count) {
                Stride from = batch * p.in_batch + i * p.in_i + k / p.run_padded * p.in_run + k % p.run_padded * p.in_k +
                              slot * p.in_slot;
                value = uintBitsToFloat(Words(p.in_ + Address(from) * 4).value) * down;
            }
            high[word] |= high_bits(value) << 16 * e;
            low[word] |= low_bits(value) << 16 * e;
        }
    }
    Stride first = batch * p.out_batch + Stride(block) * halves * subgroup + lane;
    Vectors(vector_address(p.out_, first)).value = high;
    if (halves > 1) Vectors(vector_address(p.out_, first + subgroup)).value = low;
}
