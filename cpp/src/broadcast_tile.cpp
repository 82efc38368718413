#include "broadcast_tile.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

namespace vkrnn {
namespace {

constexpr std::int64_t kMostDepth = 64;  // of a step's block of k: more is more code than the instruction cache holds
constexpr std::int64_t kMostBlocks = kTable;    // of a workgroup
constexpr std::int64_t kMostProductDepth = 96;  // the same of a product outside the time loop, whose code is smaller
constexpr std::int64_t kLeastDepth = 32;        // less is mostly overhead
constexpr std::int64_t kLoop = 16;              // steps of k of an iteration, of kernels with loops
constexpr std::int64_t kLoopDepth = 512;        // panels of as many stay in a cache, and sums keep their precision

// The largest part of k that divides it, of the deepest blocks; blocks of the full depth, the last one padded, where
// all that do are small.
Split split_of(std::int64_t k, std::int64_t most_depth, std::int64_t most_blocks) {
    Split best{most_depth, 1};
    bool divides = k % most_depth == 0;
    for (std::int64_t depth = most_depth; depth >= std::min(kLeastDepth, most_depth); depth -= 8)
        for (std::int64_t blocks = most_blocks; blocks >= 1; blocks /= 2)
            if (k % (depth * blocks) == 0 && (!divides || depth * blocks > best.whole())) {
                best = {depth, blocks};
                divides = true;
            }
    return best;
}

}  // namespace

Split gemm_split(const PlanBuilder& builder, std::int64_t k) {
    if (builder.flavour().loops()) {
        const std::int64_t parts = ceil_div(k, kLoopDepth);
        return {ceil_div(ceil_div(k, parts), kLoop) * kLoop, 1};
    }
    // Measured, in steps of k.
    constexpr double kBlockCost = 37;  // of a subgroup, whatever its depth
    constexpr double kRunCost = 10;    // of a row of the tile, to be added up and stored
    constexpr double kPadCost = 1.1;   // times as much, to pack what is padded
    Split best{};
    double least = std::numeric_limits<double>::infinity();
    for (std::int64_t depth = kMostProductDepth; depth >= 8; depth -= 8)
        for (std::int64_t blocks = kTileRows; blocks >= 1; --blocks) {
            const std::int64_t whole = depth * blocks, parts = ceil_div(k, whole);
            const auto stores = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(blocks)));
            const std::int64_t runs = kTileRows / stores;
            const double cost = static_cast<double>(parts * blocks) *
                                (kBlockCost + static_cast<double>(depth) + static_cast<double>(runs) * kRunCost) *
                                (parts * whole == k ? 1 : kPadCost);
            if (cost < least) {
                best = {depth, blocks};
                least = cost;
            }
        }
    return best;
}

GemmTile gemm_tile(const PlanBuilder& builder, std::int64_t rows, std::int64_t panels, std::int64_t k) {
    GemmTile tile{std::gcd(rows, kTileRows), 1, {}};
    tile.panels = std::gcd(panels, std::min<std::int64_t>(4, kTileRows / tile.rows));
    tile.split = builder.flavour().loops() ? gemm_split(builder, k)
                                           : split_of(k, tile.panels == 4 ? kMostDepth / 2 : kMostDepth, kMostBlocks);
    return tile;
}

std::int64_t step_slabs(const PlanBuilder& builder, std::int64_t rows, std::int64_t n, std::int64_t k) {
    return ceil_div(k, gemm_tile(builder, rows, ceil_div(n, panel_width(builder)), k).split.whole());
}

bool can_step_product(const PlanBuilder& builder, std::int64_t rows, std::int64_t n, std::int64_t k) {
    constexpr std::int64_t kMostSlabs = 32;        // few enough for the cell's code
    constexpr double kLargestSpan = 4294967296.0;  // bytes from step to step, which the kernel counts in 32 bits
    const Split split = gemm_tile(builder, rows, ceil_div(n, panel_width(builder)), k).split;
    const Spec& spec = builder.spec();
    const double bytes = 4.0 * static_cast<double>(spec.T * rows) * static_cast<double>(spec.D() * k);
    return k % split.whole() == 0 && k / split.whole() <= kMostSlabs && bytes < kLargestSpan;
}

namespace {

constexpr std::int64_t kSums = 16;              // vectors of sums that a subgroup keeps in registers
constexpr std::int64_t kLoopSums = 24;          // the same with loops, for a cell of three gates
constexpr std::int64_t kInstructions = 3200;    // of a block of k, to stay in the instruction cache
constexpr std::int64_t kMostLoads = 512;        // of vectors, of a block of k: more take seconds to compile
constexpr std::int64_t kManyLoads = 256;        // take a second or two
constexpr std::int64_t kSharedElements = 8192;  // what every device has
constexpr std::int64_t kMostShares = 4;         // of a tile's parts, of a subgroup
// Measured, in multiplications of a vector.
constexpr double kGateCost = 200;           // a part of the cell, for each of its gates
constexpr double kSubgroupCost = 500;       // of a product, whatever its depth
constexpr double kFusedSubgroupCost = 750;  // of a product and a cell
constexpr double kDispatchCost = 40e3;      // and that the processors meet after it
constexpr double kFusedWorth = 1.15;        // less is not worth the time that these kernels take to compile
constexpr double kManyLoadsWorth = 1.5;     // nor is less that of many loads

// Of a processor, where so many subgroups are or are not shared by two.
double share(std::int64_t subgroups) { return subgroups < std::int64_t{kWorthSharing} ? 2 : 1; }

// What a part of the tile takes of a kernel that forms the product; none where the tile does not do.
std::optional<double> cost(const StepTile& tile, const PlanBuilder& builder, std::int64_t slots) {
    const Profile& profile = builder.profile();
    const std::int64_t sums = slots * tile.parts(), lanes = profile.subgroup_size;
    const bool shares =
        (tile.subgroups >= tile.parts() ||
         (tile.parts() % tile.subgroups == 0 && tile.parts() / tile.subgroups <= kMostShares)) &&
        (tile.subgroups <= kTable || (tile.subgroups % kTable == 0 && tile.subgroups <= kTable * kTable));
    const std::int64_t loads = slots * tile.vectors + tile.rows;
    if (sums > kSums || !shares || tile.subgroups * lanes > profile.max_workgroup_invocations ||
        (tile.subgroups + 1) * sums * lanes > kSharedElements || tile.depth * (2 * sums + loads) > kInstructions ||
        tile.depth * slots * tile.vectors > kMostLoads)
        return {};
    const auto products = static_cast<double>(tile.subgroups * tile.depth * std::max(sums, loads));
    const double rest = kGateCost * static_cast<double>(builder.spec().G() * std::max(tile.subgroups, tile.parts())) +
                        kFusedSubgroupCost * static_cast<double>(tile.subgroups);
    const std::int64_t groups = builder.spec().N * builder.spec().H / (tile.parts() * lanes);
    const double worth = tile.depth * slots * tile.vectors > kManyLoads ? kManyLoadsWorth : 1;
    return (products + rest) / static_cast<double>(tile.parts()) * share(groups * tile.subgroups) * worth;
}

// The same with a kernel of its own for the product; none where that is not possible.
std::optional<double> unfused_cost(const PlanBuilder& builder, std::int64_t slots, std::int64_t k) {
    const Spec& spec = builder.spec();
    const std::int64_t n = slots * spec.H, lanes = builder.profile().subgroup_size;
    if (!can_step_product(builder, spec.N, n, k)) return {};
    const GemmTile tile = gemm_tile(builder, spec.N, ceil_div(n, panel_width(builder)), k);
    const std::int64_t vectors = 2 * tile.panels, sums = tile.rows * vectors;
    const double block = static_cast<double>(tile.split.depth * std::max(sums, tile.rows + vectors)) + kSubgroupCost;
    const double blocks = static_cast<double>(slots * k) / static_cast<double>(tile.split.depth * sums);
    const std::int64_t vectors_of_n = spec.N * n / lanes;
    return block * blocks * share(vectors_of_n / sums * (k / tile.split.depth)) +
           kGateCost * static_cast<double>(spec.G()) + kSubgroupCost / 2 +
           kDispatchCost * static_cast<double>(lanes) / static_cast<double>(spec.N * spec.H);
}

// The tile of a kernel with a loop over the whole depth, which one subgroup takes.
StepTile loop_tile(const PlanBuilder& builder, std::int64_t slots, std::int64_t k) {
    const Spec& spec = builder.spec();
    const std::int64_t lanes = builder.profile().subgroup_size;
    StepTile best;
    double least = std::numeric_limits<double>::infinity();
    for (std::int64_t rows = std::gcd(spec.N, kTileRows); rows >= 1; rows /= 2)
        for (std::int64_t vectors = 1; vectors <= 8; vectors *= 2) {
            const std::int64_t parts = rows * vectors, sums = slots * parts;
            if (spec.H % (vectors * lanes) != 0 || sums > kLoopSums) continue;
            const auto loop = static_cast<double>(k * std::max(sums, slots * vectors + rows));
            const double takes =
                (loop + kSubgroupCost) / static_cast<double>(parts) * share(spec.N * spec.H / (parts * lanes));
            if (takes < least) {
                best = {rows, vectors, 1, k};
                least = takes;
            }
        }
    return best;
}

}  // namespace

std::optional<StepTile> fused_tile(const PlanBuilder& builder, std::int64_t slots, std::int64_t k) {
    const Spec& spec = builder.spec();
    const std::int64_t lanes = builder.profile().subgroup_size;
    if (builder.flavour().loops()) return loop_tile(builder, slots, k);
    std::optional<StepTile> best;
    std::optional<double> least = unfused_cost(builder, slots, k);
    if (least) *least /= kFusedWorth;
    for (std::int64_t rows = std::gcd(spec.N, kTileRows); rows >= 1; rows /= 2)
        for (std::int64_t vectors = 1; vectors <= 8; vectors *= 2)
            for (std::int64_t depth = 8; depth <= kMostDepth; depth += 8) {
                if (spec.H % (vectors * lanes) != 0 || k % depth != 0) continue;
                const StepTile tile{rows, vectors, k / depth, depth};
                const auto takes = cost(tile, builder, slots);
                if (takes && (!least || *takes < *least)) {
                    best = tile;
                    least = takes;
                }
            }
    return best;
}

StepTile unfused_tile(const PlanBuilder& builder) {
    if (builder.flavour().loops()) return {1, 2, 1, 0};
    constexpr std::int64_t kMostSubgroups = 32;
    const Spec& spec = builder.spec();
    const std::int64_t vectors = std::gcd(spec.H / std::int64_t{builder.profile().subgroup_size}, kTable);
    const std::int64_t rows = std::gcd(spec.N, kMostSubgroups / (vectors / 2));
    return {rows, vectors, rows * vectors / 2, 0};
}

}  // namespace vkrnn
