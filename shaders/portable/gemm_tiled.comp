// Matrix product for GPUs. A workgroup of 16 x 16 invocations computes a tile of C from operands in shared memory, and
// an invocation a square of `side` x `side` elements in registers. While one stage of shared memory is multiplied, the
// next block of k is on its way through registers into the other one.
#include "common/memory.glsl"
#include "portable/portable_abi.h"

WORKGROUP_SIZE(kTiledInvocations)
SPECIALIZED(kGemmAColumns, uint, a_columns, 0)
SPECIALIZED(kGemmBColumns, uint, b_columns, 0)
SPECIALIZED(kGemmVectors, uint, vectors, 0)
SPECIALIZED(kGemmStoreVectors, uint, store_vectors, 0)
SPECIALIZED(kGemmTile, uint, tile, 64)
PUSH_CONSTANTS(GemmPush, p)

CONSTANT uint kDepth = kTiledDepth;
CONSTANT uint kBlock = 512;   // products summed before they are added to C: keeps rounding errors small

CONSTANT uint side = tile / 16, side_vec4s = side / 4;
CONSTANT uint tile_vec4s = tile / 4;
CONSTANT uint pitch = (tile + kTiledPadding) / 4;   // in vec4s, from k to k + 1; stores along k use different banks
SHARED_ARRAY(Real4, a_tile, [2 * kDepth * pitch])
SHARED_ARRAY(Real4, b_tile, [2 * kDepth * pitch])

// Four neighbours along the contiguous axis of an operand, from row or column i of the tile and from k on.
struct Run {
    uint i, k;
};

// Returns the run of a block that this invocation loads. None is left for it if its k is kDepth or more. Neighbours load
// neighbouring runs, or two runs of each of 16 rows, which they store to different banks.
INLINE Run this_run(bool columns) {
    uint t = gl_LocalInvocationIndex, sixteens = tile / 16;
    if (columns) return Run(t % tile_vec4s * 4, t / tile_vec4s);
    return Run(t / 32 % sixteens * 16 + t % 32 / 2, (t / 32 / sixteens * 2 + t % 2) * 4);
}

// Loads a run, with zeros for k past the end. Past the end of the other axis it repeats elements, whose results are not
// stored.
INLINE Real4 fetch(const uint tensor, Address base, uint ld, bool columns, uint i, uint i_end, uint k, uint k_end) {
    uint major = columns ? k : min(i, i_end - 1), minor = columns ? i : k, end = columns ? i_end : k_end;
    Stride row = Stride(major) * ld;
    Real4 run = Real4(0);
    if (k < k_end) {
        if (vectors != 0)
            run = load4_tensor(tensor, base, row + min(minor, end - 4));
        else
            UNROLL for (uint e = 0; e < 4; ++e)
                if (columns || minor + e < end) run[e] = load_tensor(tensor, base, row + min(minor + e, end - 1));
    }
    return run;
}

#define PUT(TILE, COLUMNS, RUN, NEXT)                                                    \
    if (RUN.k < kDepth) {                                                                \
        uint at = (stage * kDepth + RUN.k) * pitch + RUN.i / 4;                          \
        if (COLUMNS)                                                                     \
            TILE[at] = NEXT;                                                             \
        else                                                                             \
            UNROLL for (uint e = 0; e < 4; ++e) TILE[at + e * pitch][RUN.i % 4] = NEXT[e]; \
    }

// Stores a run of C, whose row has `left` elements from there on, or adds to what is stored there.
INLINE void store_run(Address c, Stride at, uint left, Real4 run, bool adds) {
    if (store_vectors != 0) {
        if (adds) run += load4_tensor(2, c, at);
        store4_tensor(2, c, at, run);
    } else
        UNROLL for (uint e = 0; e < 4; ++e)
            if (e < left) store_tensor(2, c, at + e, adds ? load_tensor(2, c, at + e) + run[e] : run[e]);
}

void main() {
    uint groups_n = (p.n + tile - 1) / tile;
    uint group = linear_group();
    uint m0 = group / groups_n * tile;
    uint n0 = group % groups_n * tile;
    uint batch = gl_WorkGroupID.z % p.batches;
    uint slab = gl_WorkGroupID.z / p.batches;
    Address a = tensor_element(0, p.a, p.a_batch * batch);
    Address b = tensor_element(1, p.b, p.b_batch * batch);
    Address c = tensor_element(2, p.c, p.c_batch * batch + p.c_slab * slab);
    uint k_begin = slab * p.chunk;
    uint k_end = min(p.k, k_begin + p.chunk);
    // The vec4s of 32 neighbours are 4 along the rows and 8 along the columns.
    uint t = gl_LocalInvocationIndex;
    uint row_vec4 = t / 64 * 4 + t / 8 % 4, column_vec4 = t / 32 % 2 * 8 + t % 8;

    Run a_run = this_run(a_columns != 0), b_run = this_run(b_columns != 0);
    Real4 a_next = Real4(0), b_next = Real4(0);
    if (a_run.k < kDepth) a_next = fetch(0, a, p.lda, a_columns != 0, m0 + a_run.i, p.m, k_begin + a_run.k, k_end);
    if (b_run.k < kDepth) b_next = fetch(1, b, p.ldb, b_columns != 0, n0 + b_run.i, p.n, k_begin + b_run.k, k_end);
    uint stage = 0;
    PUT(a_tile, a_columns != 0, a_run, a_next)
    PUT(b_tile, b_columns != 0, b_run, b_next)
    uint block_depth = is_16bit(2) ? k_end - k_begin : kBlock;   // a 16-bit C is too coarse to add to
    for (uint block = k_begin; block < k_end; block += block_depth) {
        Real4 sum[side][side_vec4s];
        UNROLL for (uint r = 0; r < side; ++r)
            UNROLL for (uint v = 0; v < side_vec4s; ++v) sum[r][v] = Real4(0);
        uint block_end = min(block + block_depth, k_end);
        for (uint k0 = block; k0 < block_end; k0 += kDepth) {
            barrier();
            uint a_k = k0 + kDepth + a_run.k, b_k = k0 + kDepth + b_run.k;
            if (a_run.k < kDepth) a_next = fetch(0, a, p.lda, a_columns != 0, m0 + a_run.i, p.m, a_k, k_end);
            if (b_run.k < kDepth) b_next = fetch(1, b, p.ldb, b_columns != 0, n0 + b_run.i, p.n, b_k, k_end);
            UNROLL for (uint k = 0; k < kDepth; ++k) {
                Real4 a_vec4s[side_vec4s], b_vec4s[side_vec4s];
                UNROLL for (uint v = 0; v < side_vec4s; ++v)
                    a_vec4s[v] = a_tile[(stage * kDepth + k) * pitch + v * 16 + row_vec4];
                UNROLL for (uint v = 0; v < side_vec4s; ++v)
                    b_vec4s[v] = b_tile[(stage * kDepth + k) * pitch + v * 16 + column_vec4];
                UNROLL for (uint r = 0; r < side; ++r)
                    UNROLL for (uint v = 0; v < side_vec4s; ++v) sum[r][v] += a_vec4s[r / 4][r % 4] * b_vec4s[v];
            }
            stage = 1 - stage;
            PUT(a_tile, a_columns != 0, a_run, a_next)
            PUT(b_tile, b_columns != 0, b_run, b_next)
        }
        UNROLL for (uint r = 0; r < side; ++r)
            UNROLL for (uint v = 0; v < side_vec4s; ++v) {
                uint i = m0 + (r / 4 * 16 + row_vec4) * 4 + r % 4, j = n0 + (v * 16 + column_vec4) * 4;
                if (i < p.m && j < p.n) store_run(c, Stride(i) * p.ldc + j, p.n - j, sum[r][v], block > k_begin);
            }
    }
}
