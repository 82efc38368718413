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

// A product is formed in blocks of k, so many of about the same size.
template <class T>
constexpr std::int64_t blocks_of(std::int64_t depth) {
    return (depth + kDepth<T> + kDepth<T> / 2 - 1) / (kDepth<T> + kDepth<T> / 2);
}

// Within a block, so many products are added up before they are added to what was there, which keeps errors small.
inline constexpr std::int64_t kRun = 128;

// Returns where the run from k on ends. What would be left for a short run belongs to the one before it.
constexpr std::int64_t run_end(std::int64_t k, std::int64_t depth) {
    return depth - k < kRun + kRun / 2 ? depth : k + kRun;
}

// sums[m][u] += sum over k of rows[m][k] panels[u][k], for the rows and vectors of a tile. Panels are `panel` elements
// apart, rows of sums `sums_row`.
template <class T>
using TileKernel = void (*)(const T* const* rows, std::int64_t depth, const T* panels, std::int64_t panel, T* sums,
                            std::int64_t sums_row);

// By rows - 1 and vectors - 1; null where there are more sums than registers. They are in tiles.cpp.
template <class T>
struct TileKernels {
    std::array<std::array<TileKernel<T>, kTileVectors>, kTileRows> at{};
    std::array<TileKernel<T>, kTileVectors> of_one_row{};  // with sums that take turns
};
template <class T>
const TileKernels<T>& tile_kernels();
template <>
const TileKernels<float>& tile_kernels();
template <>
const TileKernels<double>& tile_kernels();

// sums[m][u] += rows[m] panels[u] for any numbers of rows and vectors, in tiles of about the same size. `one_row`: of a
// call whose batch is a single row, to which sums that take turns belong.
template <class T>
HWY_INLINE void multiply_rows(const T* const* rows, std::int64_t count, std::int64_t depth, const T* panels,
                              std::int64_t panel, std::int64_t vectors, bool one_row, T* sums, std::int64_t sums_row) {
    const TileKernels<T>& kernels = tile_kernels<T>();
    const std::int64_t tiles = tiles_of(count), widest = widest_tile(count);
    const std::int64_t stripes = (vectors + widest - 1) / widest;
    for (std::int64_t stripe = 0, v = 0; stripe < stripes; ++stripe) {
        const std::int64_t v_end = vectors * (stripe + 1) / stripes;
        for (std::int64_t tile = 0, row = 0; tile < tiles; ++tile) {
            const std::int64_t end = count * (tile + 1) / tiles;
            const auto height = static_cast<std::size_t>(end - row - 1),
                       width = static_cast<std::size_t>(v_end - v - 1);
            const auto kernel = one_row ? kernels.of_one_row[width] : kernels.at[height][width];
            kernel(rows + row, depth, panels + v * panel, panel, sums + row * sums_row + v * kLanes<T>, sums_row);
            row = end;
        }
        v = v_end;
    }
}

}  // namespace vkrnn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
