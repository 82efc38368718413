// The innermost product: rows of A times panels of B, sums in registers. Included once for each instruction set.
//
// A panel holds the elements of B for as many columns as a vector has lanes: for each k, the columns side by side.
#if defined(VKRNN_CPU_TILE_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef VKRNN_CPU_TILE_INL_H
#undef VKRNN_CPU_TILE_INL_H
#else
#define VKRNN_CPU_TILE_INL_H
#endif

#include <algorithm>
#include <array>

#include "lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vkrnn::cpu::HWY_NAMESPACE {

// A tile is up to kTileRows high and up to kTileVectors wide, and holds at most kTileSums vectors of sums: what fits
// into the registers beside what is multiplied.
#if HWY_TARGET == HWY_AVX3 || HWY_ARCH_ARM_A64
inline constexpr int kTileRows = 8, kTileSums = 24;
#else
inline constexpr int kTileRows = 6, kTileSums = 12;
#endif
inline constexpr int kTileVectors = 4;
inline constexpr int kRegisters = kTileSums >= 24 ? 32 : 16;

// So many rows are shared by so many tiles of about the same height, which are so wide at most.
constexpr std::int64_t tiles_of(std::int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }
constexpr std::int64_t widest_tile(std::int64_t rows) {
    const std::int64_t highest = (rows + tiles_of(rows) - 1) / tiles_of(rows);
    return std::min<std::int64_t>(kTileVectors, kTileSums / highest);
}

// A single row has too few sums to keep the processor busy: there so many take turns along k. In which order numbers
// are added depends on that and on k alone.
inline constexpr int kTurns = kTileSums >= 24 ? 4 : 2;

// Of k, so that the panels of a tile stay in the nearest cache.
template <class T>
inline constexpr std::int64_t kDepth = 16384 / (2 * HWY_MAX(kLanes<T>, 4) * std::int64_t{sizeof(T)});

// So many products are added up before they are added to what was there, which keeps errors small.
inline constexpr std::int64_t kRun = 128;

// sums[m][u] += sum over k of rows[m][k] panels[u][k], for M rows and U panels that are `panel` elements apart.
template <class T, int M, int U, int S>
HWY_NOINLINE void multiply_tile(const T* const* rows, std::int64_t depth, const T* HWY_RESTRICT panels,
                                std::int64_t panel, T* HWY_RESTRICT sums, std::int64_t sums_row) {
    constexpr std::int64_t L = kLanes<T>;
    const Tag<T> d;
    const T* row[M];
    for (int m = 0; m < M; ++m) row[m] = rows[m];
    const T* b = panels;
    Vector<T> sum[S][M][U];
    // The vectors of B wait in registers, or where there is no room for so many, the elements of A.
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
            for (int u = 0; u < U; ++u) loaded[u] = hn::LoadU(d, b + u * panel);
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
        // What would be left for a short run belongs to this one.
        const std::int64_t end = depth - k < kRun + kRun / 2 ? depth : k + kRun;
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

template <class T>
using TileKernel = void (*)(const T* const*, std::int64_t, const T*, std::int64_t, T*, std::int64_t);

// By rows - 1 and vectors - 1.
template <class T>
struct TileKernels {
    std::array<std::array<TileKernel<T>, kTileVectors>, kTileRows> at{};
    std::array<TileKernel<T>, kTileVectors> of_one_row{};  // with sums that take turns

    constexpr TileKernels() { fill<kTileRows, kTileVectors>(); }

private:
    template <int M, int U>
    constexpr void fill() {
        if constexpr (M * U <= kTileSums) at[M - 1][U - 1] = &multiply_tile<T, M, U, 1>;
        if constexpr (M == 1) of_one_row[U - 1] = &multiply_tile<T, 1, U, kTurns>;
        if constexpr (U > 1) {
            fill<M, U - 1>();
        } else if constexpr (M > 1) {
            fill<M - 1, kTileVectors>();
        }
    }
};

// sums[m][u] += rows[m] panels[u] for any numbers of rows and vectors, in tiles of about the same size. `one_row`: of a
// call whose batch is a single row, to which sums that take turns belong.
template <class T>
HWY_INLINE void multiply_rows(const T* const* rows, std::int64_t count, std::int64_t depth, const T* panels,
                              std::int64_t panel, std::int64_t vectors, bool one_row, T* sums, std::int64_t sums_row) {
    static constexpr TileKernels<T> kKernels;
    const std::int64_t tiles = tiles_of(count), widest = widest_tile(count);
    const std::int64_t stripes = (vectors + widest - 1) / widest;
    for (std::int64_t stripe = 0, v = 0; stripe < stripes; ++stripe) {
        const std::int64_t v_end = vectors * (stripe + 1) / stripes;
        for (std::int64_t tile = 0, row = 0; tile < tiles; ++tile) {
            const std::int64_t end = count * (tile + 1) / tiles;
            const auto height = static_cast<std::size_t>(end - row - 1),
                       width = static_cast<std::size_t>(v_end - v - 1);
            const auto kernel = one_row ? kKernels.of_one_row[width] : kKernels.at[height][width];
            kernel(rows + row, depth, panels + v * panel, panel, sums + row * sums_row + v * kLanes<T>, sums_row);
            row = end;
        }
        v = v_end;
    }
}

}  // namespace vkrnn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
