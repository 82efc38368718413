// Computes the sums of a subgroup: matrix_rows x matrix_columns matrices, summed over some of the k blocks.
#ifndef VKRNN_MATRIX_MULTIPLY_GLSL
#define VKRNN_MATRIX_MULTIPLY_GLSL
#include "matrices/units.glsl"

SPECIALIZED(kMatrixRows, uint, matrix_rows, 1)
SPECIALIZED(kMatrixColumns, uint, matrix_columns, 1)
SPECIALIZED(kRowGroups, uint, row_groups, 1)
SPECIALIZED(kColumnGroups, uint, column_groups, 1)
SPECIALIZED(kDepthGroups, uint, depth_groups, 1)
SPECIALIZED(kMatrixSumSlots, uint, sum_slots, 1)
SPECIALIZED(kBlocksAhead, uint, blocks_ahead, 1)

// Where an operand's blocks are. Offsets are in 16-byte vectors.
struct Blocks {
    Address base;
    Stride first;        // offset of the subgroup's first i block, k block 0
    uint i_apart;        // distance between i blocks; k blocks are consecutive
};

// Backward, each k block of the left operand has its own scale.
#ifdef BACKWARD
CONSTANT bool scales_left = true;
DECLARE(uint load_left_scale(uint k_block))
DECLARE(float left_factor(uint scale))
#else
CONSTANT bool scales_left = false;
INLINE uint load_left_scale(uint k_block) { return 0; }
INLINE float left_factor(uint scale) { return 1.0f; }
#endif

// Adds the products of one k block, whose left operand has the scale `scale`. Matrix units truncate sums instead of
// rounding them, and these errors would accumulate over many blocks. Each block is therefore summed on its own and then
// added by an ordinary addition. This is not done if both operands have one part only and the left one has no scales of
// its own.
INLINE void multiply_add(LeftMatrix a[matrix_rows][left_parts], RightMatrix b[matrix_columns][right_parts],
                         uint scale, inout SumMatrix sums[matrix_rows][matrix_columns]) {
    float factor = left_factor(scale);
    UNROLL for (uint c = 0; c < matrix_columns; ++c) {
        UNROLL for (uint r = 0; r < matrix_rows; ++r) {
            if (left_parts == 1 && right_parts == 1 && !scales_left) {
                sums[r][c] = coopMatMulAdd(a[r][0], b[c][0], sums[r][c]);
            } else {
                SumMatrix part = SumMatrix(0.0f);
                if (left_parts > 1) part = coopMatMulAdd(a[r][left_parts - 1], b[c][0], part);
                if (right_parts > 1) part = coopMatMulAdd(a[r][0], b[c][right_parts - 1], part);
                part = coopMatMulAdd(a[r][0], b[c][0], part);
                if (scales_left) part = part * factor;
                sums[r][c] = sums[r][c] + part;
            }
        }
    }
}

#define CLEAR_SUMS(SUMS)                          \
    UNROLL for (uint r = 0; r < matrix_rows; ++r) \
        UNROLL for (uint c = 0; c < matrix_columns; ++c) SUMS[r][c] = SumMatrix(0.0f);

// Blocks loaded ahead of their products. The two k blocks are in separate variables, because NVIDIA's driver keeps an
// array in memory if the iteration of a loop indexes it.
uvec4 left_0[matrix_rows][left_parts], left_1[matrix_rows][left_parts];
uint scale_0, scale_1;
uvec4 right_0[matrix_columns][right_parts], right_1[matrix_columns][right_parts];

#define LOAD_LEFT(TURN, K)                                                                                    \
    scale_##TURN = load_left_scale(K);                                                                        \
    UNROLL for (uint h = 0; h < left_parts; ++h)                                                             \
        UNROLL for (uint r = 0; r < matrix_rows; ++r)                                                         \
            left_##TURN[r][h] = load_block(left.base, left.first + Stride((K) * left_parts + h) * subgroup + \
                                                          Stride(r) * left.i_apart, lane);
#define LOAD_RIGHT(TURN, K)                                                                                      \
    UNROLL for (uint h = 0; h < right_parts; ++h)                                                                \
        UNROLL for (uint c = 0; c < matrix_columns; ++c)                                                         \
            right_##TURN[c][h] = load_block(right.base, right.first + Stride((K) * right_parts + h) * subgroup + \
                                                            Stride(c) * right.i_apart, lane);

// The k blocks that a subgroup sums, from `begin` up to `end` by `stride`, and the invocation's index in the subgroup.
struct Run {
    uint begin, end, stride, lane;
};

// Load the first k blocks of a run. The run must not be empty.
INLINE void load_first_left(Blocks left, Run run) {
    uint lane = run.lane;
    LOAD_LEFT(0, run.begin)
    if (blocks_ahead > 1) { LOAD_LEFT(1, min(run.begin + run.stride, run.end - 1)) }
}
INLINE void load_first_right(Blocks right, Run run) {
    uint lane = run.lane;
    LOAD_RIGHT(0, run.begin)
    if (blocks_ahead > 1) { LOAD_RIGHT(1, min(run.begin + run.stride, run.end - 1)) }
}

// Adds the product of k block K, which must be loaded, and loads the next block in its place. Past the end, it loads
// the last block again, which is not used.
#define ADD_BLOCK(TURN, K)                                                                            \
    {                                                                                                 \
        LeftMatrix a[matrix_rows][left_parts];                                                        \
        RightMatrix b[matrix_columns][right_parts];                                                   \
        UNROLL for (uint h = 0; h < left_parts; ++h)                                                  \
            UNROLL for (uint r = 0; r < matrix_rows; ++r) FILL_MATRIX(a[r][h], left_##TURN[r][h])     \
        UNROLL for (uint h = 0; h < right_parts; ++h)                                                 \
            UNROLL for (uint c = 0; c < matrix_columns; ++c) FILL_MATRIX(b[c][h], right_##TURN[c][h]) \
        uint scale = scale_##TURN;                                                                    \
        uint next = min((K) + run.stride * blocks_ahead, run.end - 1);                                \
        LOAD_LEFT(TURN, next)                                                                         \
        LOAD_RIGHT(TURN, next)                                                                        \
        multiply_add(a, b, scale, sums);                                                              \
    }

// Adds the products of a run whose first k blocks have been loaded.
INLINE void add_run(Blocks left, Blocks right, Run run, inout SumMatrix sums[matrix_rows][matrix_columns]) {
    uint k = run.begin, lane = run.lane;
    for (; k + (blocks_ahead - 1) * run.stride < run.end; k += blocks_ahead * run.stride) {
        ADD_BLOCK(0, k)
        if (blocks_ahead > 1) ADD_BLOCK(1, k + run.stride)
    }
    if (blocks_ahead > 1 && k < run.end) ADD_BLOCK(0, k)
}

// Sums a run. Must not return early, because NVIDIA's driver would then keep the sums in memory.
INLINE void multiply_blocks(Blocks left, Blocks right, Run run, out SumMatrix sums[matrix_rows][matrix_columns]) {
    CLEAR_SUMS(sums)
    if (run.begin < run.end) {
        load_first_left(left, run);
        load_first_right(right, run);
    }
    add_run(left, right, run, sums);
}

#endif
