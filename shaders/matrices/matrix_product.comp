// A product of two operands in blocks: see MatrixProductPush.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "matrices/multiply.glsl"

layout(local_size_x_id = kLocalSize) in;
layout(push_constant, std430) uniform Push { MatrixProductPush p; };

const uint groups = row_groups * column_groups;
const uint block_fours = block_elements / 4;
shared vec4 staged[groups * block_fours];   // a matrix of each subgroup on its way to memory

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Number { float value; };

void main() {
    uint group = gl_SubgroupID, lane = gl_SubgroupInvocationID;
    uint tiles_n = (p.n + side * matrix_columns * column_groups - 1) / (side * matrix_columns * column_groups);
    uint tile = gl_WorkGroupID.y * kGroupsInX + gl_WorkGroupID.x;
    uint batch = gl_WorkGroupID.z % p.batches, slab = gl_WorkGroupID.z / p.batches;
    uint i_block = (tile / tiles_n * row_groups + group / column_groups) * matrix_rows;
    uint j_block = (tile % tiles_n * column_groups + group % column_groups) * matrix_columns;

    uint per_block = halves * subgroup;
    Blocks left, right;
    left.base = p.a;
    left.first = batch * p.a_batch + Stride(i_block) * p.k_blocks * per_block;
    left.i_apart = p.k_blocks * per_block;
    right.base = p.b;
    right.first = batch * p.b_batch + Stride(j_block) * p.k_blocks * per_block;
    right.i_apart = left.i_apart;
    SumMatrix sums[matrix_rows][matrix_columns];
    multiply_blocks(left, right, slab * p.chunk, min(p.k_blocks, (slab + 1) * p.chunk), 1, lane, sums);

    float a_up = scale_up(Words(p.a_largest).value), b_up = scale_up(Words(p.b_largest).value);
    Address c = p.c + Address(batch * p.c_batch + slab * p.c_slab) * 4;
    [[unroll]] for (uint r = 0; r < matrix_rows; ++r)
        [[unroll]] for (uint s = 0; s < matrix_columns; ++s) {
            subgroupBarrier();
            coopMatStore(sums[r][s], staged, group * block_fours, side / 4, gl_CooperativeMatrixLayoutRowMajor);
            subgroupMemoryBarrierShared();
            subgroupBarrier();
            [[unroll]] for (uint e = 0; e < kMatrixElements; ++e) {
                uint element = e * subgroup + lane;
                uint i = (i_block + r) * side + element / side, j = (j_block + s) * side + element % side;
                if (i < p.m && j < p.n)
                    Number(c + Address(Stride(i) * p.ldc + j) * 4).value =
                        staged[group * block_fours + element / 4][element % 4] * a_up * b_up;
            }
        }
}
