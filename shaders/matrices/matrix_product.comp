// A product of two operands in blocks: see MatrixProductPush. A workgroup has its blocks of some k, a stage, in shared
// memory. While the subgroups multiply them, those of the next stage are on their way through registers.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "matrices/shape.glsl"

layout(local_size_x_id = kLocalSize) in;
layout(constant_id = kStageBlocks) const uint stage_blocks = 1;
layout(push_constant, std430) uniform Push { MatrixProductPush p; };

// Tiles are numbered band by band, so that workgroups that run at the same time share rows and columns in the cache.
const uint band_tiles = 8;   // along m
const uint groups = row_groups * column_groups;
const uint row_blocks = row_groups * matrix_rows, column_blocks = column_groups * matrix_columns;   // of a tile
// A part is what a subgroup copies at once: one half of a block.
const uint block_parts = stage_blocks * halves;   // that an i block has in a stage
const uint left_parts = row_blocks * block_parts, right_parts = column_blocks * block_parts;
const uint left_copies = (left_parts + groups - 1) / groups, right_copies = (right_parts + groups - 1) / groups;
const uint stage_vectors = (left_parts + right_parts) * subgroup;
const uint sum_vectors = block_elements / 4;   // of a matrix of sums
shared uvec4 staged[2 * stage_vectors > groups * sum_vectors ? 2 * stage_vectors : groups * sum_vectors];

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Number { float value; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Numbers { float values[]; };

// This invocation's vector of an operand's part in the first stage, where its tile begins at a vector.
Address part_address(Address operand, Stride tile, uint part) {
    Stride block = tile + Stride(part / block_parts) * p.k_blocks * (halves * subgroup);
    return vector_address(operand, block + part % block_parts * subgroup + gl_SubgroupInvocationID);
}

// Adds the products of one k block; the vectors are this invocation's of the subgroup's first blocks.
void multiply_stage_block(uint left, uint right, inout SumMatrix sums[matrix_rows][matrix_columns]) {
    LeftMatrix a[matrix_rows][halves], a_down[matrix_rows];
    [[unroll]] for (uint r = 0; r < matrix_rows; ++r)
        [[unroll]] for (uint h = 0; h < halves; ++h) {
            uvec4 vector = staged[left + (r * block_parts + h) * subgroup];
            FILL_MATRIX(a[r][h], vector)
            if (h == 0 && halves > 1) FILL_MATRIX_DOWN(a_down[r], vector)
        }
    [[unroll]] for (uint c = 0; c < matrix_columns; ++c) {
        RightMatrix b[halves], b_down;
        [[unroll]] for (uint h = 0; h < halves; ++h) {
            uvec4 vector = staged[right + (c * block_parts + h) * subgroup];
            FILL_MATRIX(b[h], vector)
            if (h == 0 && halves > 1) FILL_MATRIX_DOWN(b_down, vector)
        }
        [[unroll]] for (uint r = 0; r < matrix_rows; ++r) {
            if (halves == 1) {
                sums[r][c] = coopMatMulAdd(a[r][0], b[0], sums[r][c]);
            } else {
                // Matrix units cut the digits off that a sum has no room for; only an addition rounds them.
                SumMatrix sum = coopMatMulAdd(a_down[r], b[halves - 1], SumMatrix(0.0));
                sum = coopMatMulAdd(a[r][halves - 1], b_down, sum);
                sums[r][c] = sums[r][c] + coopMatMulAdd(a[r][0], b[0], sum);
            }
        }
    }
}

void main() {
    uint group = gl_SubgroupID, lane = gl_SubgroupInvocationID;
    uint tile_m = side * row_blocks, tile_n = side * column_blocks;
    uint tiles_m = (p.m + tile_m - 1) / tile_m, tiles_n = (p.n + tile_n - 1) / tile_n;
    uint tile = gl_WorkGroupID.y * kGroupsInX + gl_WorkGroupID.x;
    if (tile >= tiles_m * tiles_n) return;
    uint band = tile / (band_tiles * tiles_n) * band_tiles, in_band = tile % (band_tiles * tiles_n);
    uint band_rows = min(band_tiles, tiles_m - band);
    uint i_tile = band + in_band % band_rows, j_tile = in_band / band_rows;
    uint batch = gl_WorkGroupID.z % p.batches, slab = gl_WorkGroupID.z / p.batches;
    uint k_begin = slab * p.chunk, k_end = min(p.k_blocks, k_begin + p.chunk);

    uint block = halves * subgroup;   // vectors
    Stride left_tile = batch * p.a_batch + (Stride(i_tile * row_blocks) * p.k_blocks + k_begin) * block;
    Stride right_tile = batch * p.b_batch + (Stride(j_tile * column_blocks) * p.k_blocks + k_begin) * block;
    Address left[left_copies], right[right_copies];
    [[unroll]] for (uint i = 0; i < left_copies; ++i) left[i] = part_address(p.a, left_tile, i * groups + group);
    [[unroll]] for (uint i = 0; i < right_copies; ++i) right[i] = part_address(p.b, right_tile, i * groups + group);
    uvec4 next_left[left_copies], next_right[right_copies];

    SumMatrix sums[matrix_rows][matrix_columns];
    [[unroll]] for (uint r = 0; r < matrix_rows; ++r)
        [[unroll]] for (uint c = 0; c < matrix_columns; ++c) sums[r][c] = SumMatrix(0.0);
    uint row_part = group / column_groups * matrix_rows * block_parts;
    uint column_part = left_parts + group % column_groups * matrix_columns * block_parts;

    // The first turn only fetches and puts; the last one only multiplies.
    uint stage = 0;
    for (uint k = k_begin; k < k_end + stage_blocks; k += stage_blocks) {
        bool fetch = k < k_end;
        if (fetch) {
            [[unroll]] for (uint i = 0; i < left_copies; ++i)
                if (i * groups + group < left_parts) {
                    next_left[i] = Vectors(left[i]).value;
                    left[i] += block_parts * subgroup * 16;
                }
            [[unroll]] for (uint i = 0; i < right_copies; ++i)
                if (i * groups + group < right_parts) {
                    next_right[i] = Vectors(right[i]).value;
                    right[i] += block_parts * subgroup * 16;
                }
        }
        if (k > k_begin)
            [[unroll]] for (uint i = 0; i < stage_blocks; ++i)
                multiply_stage_block(stage + (row_part + i * halves) * subgroup + lane,
                                     stage + (column_part + i * halves) * subgroup + lane, sums);
        stage = stage_vectors - stage;
        if (fetch) {
            [[unroll]] for (uint i = 0; i < left_copies; ++i)
                if (i * groups + group < left_parts)
                    staged[stage + (i * groups + group) * subgroup + lane] = next_left[i];
            [[unroll]] for (uint i = 0; i < right_copies; ++i)
                if (i * groups + group < right_parts)
                    staged[stage + (left_parts + i * groups + group) * subgroup + lane] = next_right[i];
        }
        barrier();
    }

    float a_up = scale_up(Words(p.a_largest).value), b_up = scale_up(Words(p.b_largest).value);
    Address c = p.c + Address(batch * p.c_batch + slab * p.c_slab) * 4;
    uint first_i = (i_tile * row_groups + group / column_groups) * matrix_rows * side;
    uint first_j = (j_tile * column_groups + group % column_groups) * matrix_columns * side;
    bool direct = (i_tile + 1) * tile_m <= p.m && (j_tile + 1) * tile_n <= p.n && p.ldc % 4 == 0 && c % 16 == 0;
    // No `continue` here: loops with one are not unrolled by NVIDIA's driver, and arrays with an index of the loop would go
    // to memory.
    [[unroll]] for (uint r = 0; r < matrix_rows; ++r)
        [[unroll]] for (uint s = 0; s < matrix_columns; ++s) sums[r][s] = sums[r][s] * a_up * b_up;
    if (direct) {
        [[unroll]] for (uint r = 0; r < matrix_rows; ++r)
            [[unroll]] for (uint s = 0; s < matrix_columns; ++s) {
                Stride at = Stride(first_i + r * side) * p.ldc + first_j + s * side;
                coopMatStore(sums[r][s], Numbers(c + Address(at) * 4).values, 0, p.ldc, gl_CooperativeMatrixLayoutRowMajor);
            }
    } else {
        [[unroll]] for (uint r = 0; r < matrix_rows; ++r)
            [[unroll]] for (uint s = 0; s < matrix_columns; ++s) {
                subgroupBarrier();
                coopMatStore(sums[r][s], staged, group * sum_vectors, side / 4, gl_CooperativeMatrixLayoutRowMajor);
                subgroupMemoryBarrierShared();
                subgroupBarrier();
                [[unroll]] for (uint e = 0; e < kMatrixElements; ++e) {
                    uint element = e * subgroup + lane;
                    uint i = first_i + r * side + element / side, j = first_j + s * side + element % side;
                    if (i < p.m && j < p.n)
                        Number(c + Address(Stride(i) * p.ldc + j) * 4).value =
                            uintBitsToFloat(staged[group * sum_vectors + element / 4][element % 4]);
                }
            }
    }
}
