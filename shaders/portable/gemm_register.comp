// Matrix product for CPU devices. Each invocation has a register tile of 16 x 4. There is no shared memory, because
// barriers are slow on CPUs. A workgroup is one subgroup, whose invocations load the rows of A together and broadcast
// them.
// All loops except the one over k are unrolled, because some drivers end loops after a certain total number of
// iterations.
#include "common/memory.glsl"
#include "portable/portable_abi.h"

WORKGROUP_SIZE_ID(kGemmLanes)
SPECIALIZED(kGemmAColumns, uint, a_columns, 0)
SPECIALIZED(kGemmBColumns, uint, b_columns, 0)
SPECIALIZED(kGemmVectors, uint, vectors, 0)
SPECIALIZED(kGemmLanes, uint, lanes, 8)
PUSH_CONSTANTS(GemmPush, p)

CONSTANT uint kTileM = kRegisterTileM;
CONSTANT uint kTileN = kRegisterTileN;
CONSTANT uint kBlock = 64;   // products summed before they are added to the total: keeps rounding errors small

// Loads elements (i, k .. k+3) of an operand, with zeros for k past the end. An i past the edge repeats the last row;
// its results are not stored.
INLINE Real4 load_k(const uint tensor, Address base, uint ld, bool columns, uint i, uint i_end, uint k, uint k_end) {
    i = min(i, i_end - 1);
    Stride at = columns ? Stride(k) * ld + i : Stride(i) * ld + k;
    if (vectors != 0 && !columns) return load4_tensor(tensor, base, at);
    uint apart = columns ? ld : 1, last = k_end - 1 - k;
    Real4 run;
    UNROLL for (uint j = 0; j < 4; ++j)
        run[j] = j <= last ? load_tensor(tensor, base, at + min(j, last) * apart) : 0.0f;
    return run;
}

void main() {
    uint tiles_n = (p.n + kTileN - 1) / kTileN;
    uint groups_n = (tiles_n + lanes - 1) / lanes;
    uint group = linear_group();
    uint lane = gl_SubgroupInvocationID;
    uint m0 = group / groups_n * kTileM;
    uint n0 = (group % groups_n * lanes + lane) * kTileN;

    uint batch = gl_WorkGroupID.z % p.batches;
    uint slab = gl_WorkGroupID.z / p.batches;
    Address a = tensor_element(0, p.a, p.a_batch * batch);
    Address b = tensor_element(1, p.b, p.b_batch * batch);
    Address c = tensor_element(2, p.c, p.c_batch * batch + p.c_slab * slab);
    uint k_begin = slab * p.chunk;
    uint k_end = min(p.k, k_begin + p.chunk);

    Real total[kTileM][kTileN];
    UNROLL for (uint i = 0; i < kTileM; ++i)
        UNROLL for (uint j = 0; j < kTileN; ++j) total[i][j] = 0.0f;
    for (uint block = k_begin; block < k_end; block += kBlock) {
        Real sum[kTileM][kTileN];
        UNROLL for (uint i = 0; i < kTileM; ++i)
            UNROLL for (uint j = 0; j < kTileN; ++j) sum[i][j] = 0.0f;
        uint block_end = min(block + kBlock, k_end);
        for (uint k = block; k < block_end; k += 4) {
            Real4 b_run[kTileN];
            UNROLL for (uint j = 0; j < kTileN; ++j)
                b_run[j] = load_k(1, b, p.ldb, b_columns != 0, n0 + j, p.n, k, k_end);
            Real4 loaded[kTileM];   // row i of the tile is in lane i % lanes
            UNROLL for (uint first = 0; first * lanes < kTileM; ++first)
                loaded[first] = load_k(0, a, p.lda, a_columns != 0, m0 + first * lanes + lane, p.m, k, k_end);
            UNROLL for (uint i = 0; i < kTileM; ++i) {
                Real4 a_run = subgroupBroadcast(loaded[i / lanes], i % lanes);
                UNROLL for (uint j = 0; j < kTileN; ++j) sum[i][j] += dot(a_run, b_run[j]);
            }
        }
        UNROLL for (uint i = 0; i < kTileM; ++i)
            UNROLL for (uint j = 0; j < kTileN; ++j) total[i][j] += sum[i][j];
    }
    UNROLL for (uint i = 0; i < kTileM; ++i)
        UNROLL for (uint j = 0; j < kTileN; ++j)
            if (m0 + i < p.m && n0 + j < p.n) store_tensor(2, c, Stride(m0 + i) * p.ldc + n0 + j, total[i][j]);
}
