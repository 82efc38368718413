// The sums of a subgroup: matrix_rows x matrix_columns matrices, over some of the k blocks.
#ifndef VKRNN_MATRIX_MULTIPLY_GLSL
#define VKRNN_MATRIX_MULTIPLY_GLSL
#include "matrices/units.glsl"

layout(constant_id = kMatrixRows) const uint matrix_rows = 1;
layout(constant_id = kMatrixColumns) const uint matrix_columns = 1;
layout(constant_id = kRowGroups) const uint row_groups = 1;
layout(constant_id = kColumnGroups) const uint column_groups = 1;
layout(constant_id = kDepthGroups) const uint depth_groups = 1;
layout(constant_id = kMatrixSumSlots) const uint sum_slots = 1;
layout(constant_id = kScaleCount) const uint scale_count = 1;

// The place of an operand's blocks, in 16-byte vectors.
struct Blocks {
    Address base;
    Stride first;        // of the subgroup's first i block, k block 0
    uint i_apart;        // from one i block to the next; k blocks follow each other
};

#ifdef TILE_SCALES
// Returns the scale of the left operand's k block, relative to the largest one of all.
float16_t left_factor(uint k_block);
#endif

// Adds the products of one k block. Matrix units cut sums off instead of rounding them, which would add up over many
// blocks: a block's sum is formed by itself and then added as numbers are, unless the operands are halves themselves.
void multiply_add(LeftMatrix a[matrix_rows][left_halves], RightMatrix b[matrix_columns][right_halves],
                  inout SumMatrix sums[matrix_rows][matrix_columns]) {
    [[unroll]] for (uint c = 0; c < matrix_columns; ++c) {
        [[unroll]] for (uint r = 0; r < matrix_rows; ++r) {
            if (left_halves == 1 && right_halves == 1) {
                sums[r][c] = coopMatMulAdd(a[r][0], b[c][0], sums[r][c]);
            } else {
                SumMatrix part = SumMatrix(0.0);
                if (left_halves > 1) part = coopMatMulAdd(a[r][left_halves - 1], b[c][0], part);
                if (right_halves > 1) part = coopMatMulAdd(a[r][0], b[c][right_halves - 1], part);
                sums[r][c] = sums[r][c] + coopMatMulAdd(a[r][0], b[c][0], part);
            }
        }
    }
}

// Loads the operands' k block.
#define LOAD_BLOCKS(K)                                                                                                    \
    [[unroll]] for (uint h = 0; h < left_halves; ++h)                                                                     \
        [[unroll]] for (uint r = 0; r < matrix_rows; ++r)                                                                 \
            next_left[r][h] = load_block(left.base, left.first + Stride((K) * left_halves + h) * subgroup +               \
                                                        Stride(r) * left.i_apart, lane);                                  \
    [[unroll]] for (uint h = 0; h < right_halves; ++h)                                                                    \
        [[unroll]] for (uint c = 0; c < matrix_columns; ++c)                                                              \
            next_right[c][h] = load_block(right.base, right.first + Stride((K) * right_halves + h) * subgroup +           \
                                                          Stride(c) * right.i_apart, lane);

void multiply_blocks(Blocks left, Blocks right, uint k_begin, uint k_end, uint k_step, uint lane,
                     out SumMatrix sums[matrix_rows][matrix_columns]) {
    [[unroll]] for (uint r = 0; r < matrix_rows; ++r)
        [[unroll]] for (uint c = 0; c < matrix_columns; ++c) sums[r][c] = SumMatrix(0.0);
    uvec4 next_left[matrix_rows][left_halves], next_right[matrix_columns][right_halves];
    if (k_begin < k_end) {
        LOAD_BLOCKS(k_begin)
    }
    for (uint k = k_begin; k < k_end; k += k_step) {
        LeftMatrix a[matrix_rows][left_halves];
        RightMatrix b[matrix_columns][right_halves];
        [[unroll]] for (uint h = 0; h < left_halves; ++h)
            [[unroll]] for (uint r = 0; r < matrix_rows; ++r) FILL_MATRIX(a[r][h], next_left[r][h])
        [[unroll]] for (uint h = 0; h < right_halves; ++h)
            [[unroll]] for (uint c = 0; c < matrix_columns; ++c) FILL_MATRIX(b[c][h], next_right[c][h])
#ifdef TILE_SCALES
        float16_t factor = left_factor(k);
        [[unroll]] for (uint h = 0; h < left_halves; ++h)
            [[unroll]] for (uint r = 0; r < matrix_rows; ++r) a[r][h] = a[r][h] * factor;
#endif
        uint next = min(k + k_step, k_end - 1);   // past the end anything there will do
        LOAD_BLOCKS(next)
        multiply_add(a, b, sums);
    }
}

#endif
