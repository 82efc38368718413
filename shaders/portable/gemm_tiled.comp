// Matrix product for GPUs, with tiles of 64 x 64 in shared memory and 4 x 4 per invocation.
#include "common/memory.glsl"
#include "portable/portable_abi.h"

WORKGROUP_SIZE(kTiledInvocations)
SPECIALIZED(kGemmAColumns, uint, a_columns, 0)
SPECIALIZED(kGemmBColumns, uint, b_columns, 0)
SPECIALIZED(kGemmVectors, uint, vectors, 0)
PUSH_CONSTANTS(GemmPush, p)

CONSTANT uint kTile = kTiledTile;
CONSTANT uint kDepth = 16;
CONSTANT uint kBlock = 128;   // products summed before they are added to the total: keeps rounding errors small

SHARED_ARRAY(Real, a_tile, [kDepth][kTile + 4])
SHARED_ARRAY(Real, b_tile, [kDepth][kTile + 4])

// Loads four elements along the contiguous (minor) axis, starting at (major, minor), with zeros past either end.
INLINE Real4 load_run(const uint tensor, Address base, uint ld, uint major, uint major_end, uint minor,
                      uint minor_end) {
    if (major >= major_end) return Real4(0);
    Stride row = Stride(major) * ld;
    if (vectors != 0) return minor < minor_end ? load4_tensor(tensor, base, row + minor) : Real4(0);
    Real4 run;
    for (uint i = 0; i < 4; ++i)
        run[i] = minor + i < minor_end ? load_tensor(tensor, base, row + min(minor + i, minor_end - 1)) : 0.0f;
    return run;
}

// Loads this invocation's four elements of the tile at (i0, k0).
INLINE Real4 fetch(const uint tensor, Address base, uint ld, bool columns, uint i0, uint i_end, uint k0, uint k_end) {
    uint t = gl_LocalInvocationIndex;
    return columns ? load_run(tensor, base, ld, k0 + t / 16, k_end, i0 + t % 16 * 4, i_end)
                   : load_run(tensor, base, ld, i0 + t / 4, i_end, k0 + t % 4 * 4, k_end);
}

#define PUT(TILE, COLUMNS, RUN)                                                                       \
    for (uint e = 0; e < 4; ++e) {                                                                    \
        uint t = gl_LocalInvocationIndex;                                                             \
        if (COLUMNS) TILE[t / 16][t % 16 * 4 + e] = RUN[e]; else TILE[t % 4 * 4 + e][t / 4] = RUN[e]; \
    }

void main() {
    uint groups_n = (p.n + kTile - 1) / kTile;
    uint group = linear_group();
    uint m0 = group / groups_n * kTile;
    uint n0 = group % groups_n * kTile;
    uint batch = gl_WorkGroupID.z % p.batches;
    uint slab = gl_WorkGroupID.z / p.batches;
    Address a = tensor_element(0, p.a, p.a_batch * batch);
    Address b = tensor_element(1, p.b, p.b_batch * batch);
    Address c = tensor_element(2, p.c, p.c_batch * batch + p.c_slab * slab);
    uint k_begin = slab * p.chunk;
    uint k_end = min(p.k, k_begin + p.chunk);
    uint row = gl_LocalInvocationIndex / 16 * 4;
    uint column = gl_LocalInvocationIndex % 16 * 4;

    Real4 total[4], sum[4];
    for (uint i = 0; i < 4; ++i) total[i] = sum[i] = Real4(0);
    Real4 a_next = fetch(0, a, p.lda, a_columns != 0, m0, p.m, k_begin, k_end);
    Real4 b_next = fetch(1, b, p.ldb, b_columns != 0, n0, p.n, k_begin, k_end);
    for (uint k0 = k_begin; k0 < k_end; k0 += kDepth) {
        barrier();
        PUT(a_tile, a_columns != 0, a_next)
        PUT(b_tile, b_columns != 0, b_next)
        barrier();
        a_next = fetch(0, a, p.lda, a_columns != 0, m0, p.m, k0 + kDepth, k_end);
        b_next = fetch(1, b, p.ldb, b_columns != 0, n0, p.n, k0 + kDepth, k_end);
        for (uint k = 0; k < kDepth; ++k) {
            Real4 a_run = Real4(a_tile[k][row], a_tile[k][row + 1], a_tile[k][row + 2], a_tile[k][row + 3]);
            Real4 b_run = Real4(b_tile[k][column], b_tile[k][column + 1], b_tile[k][column + 2], b_tile[k][column + 3]);
            for (uint i = 0; i < 4; ++i) sum[i] += a_run[i] * b_run;
        }
        if ((k0 - k_begin) % kBlock == kBlock - kDepth)
            for (uint i = 0; i < 4; ++i) {
                total[i] += sum[i];
                sum[i] = Real4(0);
            }
    }
    for (uint i = 0; i < 4; ++i)
        for (uint j = 0; j < 4; ++j)
            if (m0 + row + i < p.m && n0 + column + j < p.n)
                store_tensor(2, c, Stride(m0 + row + i) * p.ldc + n0 + column + j, total[i][j] + sum[i][j]);
}
