// The innermost product: rows of A times panels of B, with sums in registers. Compiled for each instruction set.
//
// A panel holds as many columns of B as a vector has lanes. For each k, the elements of these columns are contiguous.
#pragma once

#include <algorithm>
#include <array>

#include "lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vkrnn::cpu::HWY_NAMESPACE {

// A tile has up to kTileRows rows and kTileVectors vectors of columns, and at most kTileSums vectors of sums. That
// leaves enough registers for the operands. With AVX2, four rows of three vectors need fewer loads than six of two.
#if HWY_TARGET == HWY_AVX3 || HWY_ARCH_ARM_A64
inline constexpr int kTileRows = 8, kTileSums = 24;
#elif HWY_TARGET == HWY_AVX2
inline constexpr int kTileRows = 4, kTileSums = 12;
#else
inline constexpr int kTileRows = 6, kTileSums = 12;
#endif
inline constexpr int kTileVectors = 4;
inline constexpr int kRegisters = kTileSums >= 24 ? 32 : 16;

// `rows` rows are divided into tiles_of(rows) tiles of about the same height, each at most widest_tile(rows) vectors
// wide.
constexpr std::int64_t tiles_of(std::int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }
constexpr std::int64_t widest_tile(std::int64_t rows) {
    const std::int64_t highest = (rows + tiles_of(rows) - 1) / tiles_of(rows);
    return std::min<std::int64_t>(kTileVectors, kTileSums / highest);
}

// A single row has too few sums to keep the processor busy. Each of its sums is therefore split into kTurns partial
// sums that take turns along k. The order of additions depends only on that and on the depth.
inline constexpr int kTurns = kTileSums >= 24 ? 4 : 2;

// Block size along k, chosen so that the panels of a tile stay in the L1 cache.
template <class T>
inline constexpr std::int64_t kDepth = 16384 / (2 * HWY_MAX(kLanes<T>, 4) * std::int64_t{sizeof(T)});

// Returns the number of blocks of about equal size that a product is divided into along k.
template <class T>
constexpr std::int64_t blocks_of(std::int64_t depth) {
    return (depth + kDepth<T> + kDepth<T> / 2 - 1) / (kDepth<T> + kDepth<T> / 2);
}

// Within a block, this many products are summed before they are added to the total, which keeps rounding errors small.
inline constexpr std::int64_t kRun = 128;

// Returns the end of the run that begins at k. A remainder of less than half a run is joined to the run before it.
constexpr std::int64_t run_end(std::int64_t k, std::int64_t depth) {
    return depth - k < kRun + kRun / 2 ? depth : k + kRun;
}

// sums[m][u] += sum over k of rows[m][k] * panels[u][k], for the rows and vectors of a tile. Panels are `panel`
// elements apart, and rows of sums `sums_row` elements.
template <class T>
using TileKernel = void (*)(const T* const* rows, std::int64_t depth, const T* panels, std::int64_t panel, T* sums,
                            std::int64_t sums_row);

// Tile kernels by rows - 1 and vectors - 1; null if the sums need too many registers. tiles.cpp defines them.
template <class T>
struct TileKernels {
    std::array<std::array<TileKernel<T>, kTileVectors>, kTileRows> at{};
    std::array<TileKernel<T>, kTileVectors> of_one_row{};  // with kTurns partial sums
};
template <class T>
const TileKernels<T>& tile_kernels();
template <>
const TileKernels<float>& tile_kernels();
template <>
const TileKernels<double>& tile_kernels();

// sums[m][u] += rows[m] * panels[u] for any number of rows and vectors, in tiles of about the same size. `one_row`: the
// whole batch is a single row, whose sums are split into kTurns partial sums.
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
