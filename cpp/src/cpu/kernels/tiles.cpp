// The tile kernels of tile-inl.h, for every tile size and every instruction set.
#include "targets.h"
// After targets.h:
#include "tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vkrnn::cpu::HWY_NAMESPACE {
namespace {

// Keeps a vector in its register. With few rows, GCC would rather load it again, although loads are then the
// bottleneck: three rows took longer than four.
template <class V>
HWY_INLINE void hold([[maybe_unused]] V& vector) {
#if HWY_ARCH_X86 && HWY_COMPILER_GCC
    asm("" : "+v"(vector.raw));
#endif
}

// A TileKernel for M rows and U vectors. Each sum is split into S partial sums that take turns along k.
template <class T, int M, int U, int S>
void multiply_tile(const T* const* rows, std::int64_t depth, const T* HWY_RESTRICT panels, std::int64_t panel,
                   T* HWY_RESTRICT sums, std::int64_t sums_row) {
    constexpr std::int64_t L = kLanes<T>;
    const Tag<T> d;
    const T* row[M];
    for (int m = 0; m < M; ++m) row[m] = rows[m];
    const T* b = panels;
    Vector<T> sum[S][M][U];
    // Keeps the vectors of B in registers or, if these are too few, the elements of A.
    const auto step = [&](int s, std::int64_t k) HWY_ATTR {
        if constexpr (M < U && M * U + U + 1 > kRegisters) {
            Vector<T> a[M];
            for (int m = 0; m < M; ++m) a[m] = hn::Set(d, row[m][k]);
            for (int u = 0; u < U; ++u) {
                const auto loaded = hn::LoadU(d, b + u * panel);
                for (int m = 0; m < M; ++m) sum[s][m][u] = hn::MulAdd(a[m], loaded, sum[s][m][u]);
            }
        } else {
            Vector<T> loaded[U];
            for (int u = 0; u < U; ++u) {
                loaded[u] = hn::LoadU(d, b + u * panel);
                if constexpr (M > 1) hold(loaded[u]);
            }
            for (int m = 0; m < M; ++m) {
                const auto a = hn::Set(d, row[m][k]);
                for (int u = 0; u < U; ++u) sum[s][m][u] = hn::MulAdd(a, loaded[u], sum[s][m][u]);
            }
        }
        b += L;
    };
    for (std::int64_t k = 0; k < depth;) {
        for (int s = 0; s < S; ++s)
            for (int m = 0; m < M; ++m)
                for (int u = 0; u < U; ++u) sum[s][m][u] = hn::Zero(d);
        const std::int64_t end = run_end(k, depth);
        for (; k + S <= end; k += S)
            for (int s = 0; s < S; ++s) step(s, k + s);
        if constexpr (S > 1)
            for (; k < end; ++k) step(0, k);
        for (int m = 0; m < M; ++m)
            for (int u = 0; u < U; ++u) {
                auto total = sum[0][m][u];
                for (int s = 1; s < S; ++s) total = hn::Add(total, sum[s][m][u]);
                T* const to = sums + m * sums_row + u * L;
                hn::StoreU(hn::Add(hn::LoadU(d, to), total), d, to);
            }
    }
}

template <class T, int M, int U>
constexpr void fill(TileKernels<T>& kernels) {
    if constexpr (M * U <= kTileSums) kernels.at[M - 1][U - 1] = &multiply_tile<T, M, U, 1>;
    if constexpr (M == 1) kernels.of_one_row[U - 1] = &multiply_tile<T, 1, U, kTurns>;
    if constexpr (U > 1) {
        fill<T, M, U - 1>(kernels);
    } else if constexpr (M > 1) {
        fill<T, M - 1, kTileVectors>(kernels);
    }
}

template <class T>
constexpr TileKernels<T> all_tiles() {
    TileKernels<T> kernels;
    fill<T, kTileRows, kTileVectors>(kernels);
    return kernels;
}

}  // namespace

template <>
const TileKernels<float>& tile_kernels() {
    static constexpr TileKernels<float> kKernels = all_tiles<float>();
    return kKernels;
}

template <>
const TileKernels<double>& tile_kernels() {
    static constexpr TileKernels<double> kKernels = all_tiles<double>();
    return kKernels;
}

}  // namespace vkrnn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
