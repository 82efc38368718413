#include "portable_products.h"

#include <algorithm>
#include <limits>

#include "plan/cost_table.h"
#include "plan/gpu/gpu.h"
#include "portable/portable_abi.h"

namespace vkrnn {
namespace {

// The workgroups for each multiprocessor up to which a product with few tiles is cut into slabs along k.
constexpr std::int64_t kGroupsEach = 2;
constexpr std::int64_t kMinChunk = 512;  // the least k of a slab
constexpr std::int64_t kChunkMultiple = 64;
// The most k of a chunk on drivers that limit loop iterations. gemm_register takes about k / 4 of them.
constexpr std::int64_t kLimitedChunk = 32768;

// Returns whether an operand can be read four elements at a time.
bool aligned(const Matrix& matrix, std::int64_t extent, std::int64_t k) {
    return matrix.ld % 4 == 0 && matrix.batch % 4 == 0 && matrix.offset % 4 == 0 &&
           (matrix.columns ? extent : k) % 4 == 0;
}

// A tile of the tiled kernel, which a workgroup computes. `flops_per_us` is the rate of a GPU that is full of them,
// measured on an H100. Only the ratio of the rates matters.
struct TileShape {
    std::uint32_t side;
    double flops_per_us;
};
// The slow-down of a workgroup that is alone on its multiprocessor, where no other workgroup hides its latencies.
constexpr double kAlone = 1.3;
constexpr TileShape kTileShapes[] = {{64, 2.8e7}, {128, 3.9e7}};

// How workgroups share C: in tiles, each of which is cut along k into slabs.
struct TileGrid {
    std::uint32_t side = 0;
    std::int64_t slabs = 0;
    double microseconds = std::numeric_limits<double>::max();
};

// Returns whether two stages of both operands fit in shared memory.
bool fits(const TileShape& shape, Dtype dtype, const Profile& profile) {
    const std::size_t elements = std::size_t{4} * abi::kTiledDepth * (shape.side + abi::kTiledPadding);
    return elements * compute_bytes(dtype) <= profile.max_shared_memory;
}

// Returns the grid with the lowest estimated time, which the busiest multiprocessor determines.
TileGrid best_grid(const Product& p, Dtype dtype, bool allow_slabs, const Profile& profile) {
    const std::int64_t cores = multiprocessors(profile);
    TileGrid best;
    for (const TileShape& shape : kTileShapes) {
        const auto& [side, flops_per_us] = shape;
        // The smallest shape is always used. In float64, the sums of the others do not fit in registers.
        if (best.side != 0 && (dtype == Dtype::float64 || !fits(shape, dtype, profile))) continue;
        const std::int64_t tiles = ceil_div(p.m, side) * ceil_div(p.n, side), groups = tiles * p.batches;
        const std::int64_t most =
            allow_slabs ? std::min(ceil_div(kGroupsEach * cores, groups), ceil_div(p.k, kMinChunk)) : 1;
        for (std::int64_t slabs = 1; slabs <= most; ++slabs) {
            const std::int64_t busiest = ceil_div(groups * slabs, cores);
            const double waves = busiest == 1 ? kAlone : static_cast<double>(busiest);
            const double flops = 2.0 * waves * static_cast<double>(cores * side * side * ceil_div(p.k, slabs));
            if (flops / flops_per_us < best.microseconds) best = {side, slabs, flops / flops_per_us};
        }
    }
    return best;
}

}  // namespace

std::optional<CostEstimate> PortableProducts::estimate(const Spec& spec, const Profile& /*profile*/, const Costs& costs,
                                                       const Parameters& /*wanted*/) const {
    const double factor = spec.dtype == Dtype::float64 ? costs.products.float64_factor : 1;
    return CostEstimate{factor * (costs.products.least_flops + product_flops(spec)) / flops_per_us(costs.products)};
}

void PortableProducts::product(PlanBuilder& builder, const std::string& label, const Product& p,
                               bool independent) const {
    const Profile& profile = builder.profile();
    // Each slab is a contiguous copy of C for all batches. A sum over rows then adds up the slabs.
    const std::int64_t size = p.m * p.n;
    const bool allow_slabs = p.c.ld == p.n && (p.batches == 1 || p.c.batch == size);
    Constants constants;
    constants.flag(abi::kGemmAColumns, "a_columns", p.a.columns)
        .flag(abi::kGemmBColumns, "b_columns", p.b.columns)
        .flag(abi::kGemmVectors, "vectors", aligned(p.a, p.m, p.k) && aligned(p.b, p.n, p.k));
    Tiling tiling = this->tiling(builder, p, allow_slabs, constants);
    std::int64_t chunk = ceil_div(ceil_div(p.k, tiling.slabs), kChunkMultiple) * kChunkMultiple;
    if (profile.max_loop_iterations != 0 && allow_slabs) chunk = std::min(chunk, kLimitedChunk);
    const std::int64_t slabs = ceil_div(p.k, chunk);

    Matrix c = p.c;
    if (slabs > 1) c = {builder.scratch(label + " slabs", slabs * p.batches * size), 0, p.n, size, false};
    constants.stored(builder.stored({p.a.buffer, p.b.buffer, c.buffer}), builder.spec().dtype);

    abi::GemmPush push{};
    push.a = builder.at(p.a.buffer, p.a.offset);
    push.b = builder.at(p.b.buffer, p.b.offset);
    push.c = builder.at(c.buffer, c.offset);
    push.a_batch = p.a.batch;
    push.b_batch = p.b.batch;
    push.c_batch = c.batch;
    push.c_slab = p.batches * size;
    push.m = u32(p.m);
    push.n = u32(p.n);
    push.k = u32(p.k);
    push.lda = u32(p.a.ld);
    push.ldb = u32(p.b.ld);
    push.ldc = u32(c.ld);
    push.chunk = u32(chunk);
    push.batches = u32(p.batches);
    builder.dispatch(label, builder.kernel(std::move(tiling.shader), std::move(constants)),
                     builder.groups(tiling.tiles, slabs * p.batches), make_block(push), independent);
    if (slabs == 1) return;

    add_parts(builder, label + ": add slabs", c.buffer, slabs, p.batches * size, p.c.buffer, p.c.offset);
}

PortableProducts::Tiling RegisterProducts::tiling(const PlanBuilder& builder, const Product& p, bool /*allow_slabs*/,
                                                  Constants& constants) const {
    const std::uint32_t lanes = builder.profile().subgroup_size;
    constants.set(abi::kGemmLanes, "lanes", lanes);
    const std::int64_t n = std::int64_t{abi::kRegisterTileN} * lanes;
    return {"gemm_register", ceil_div(p.m, abi::kRegisterTileM) * ceil_div(p.n, n), 1};
}

bool TiledProducts::runs_on(const Profile& profile) const {
    return profile.max_workgroup_invocations >= abi::kTiledInvocations;
}

PortableProducts::Tiling TiledProducts::tiling(const PlanBuilder& builder, const Product& p, bool allow_slabs,
                                               Constants& constants) const {
    const TileGrid grid = best_grid(p.whole(), builder.spec().dtype, allow_slabs, builder.profile());
    constants.flag(abi::kGemmStoreVectors, "store_vectors", aligned(p.c, p.m, p.n) && p.m * p.n % 4 == 0)
        .set(abi::kGemmTile, "tile", grid.side);
    return {"gemm_tiled", ceil_div(p.m, grid.side) * ceil_div(p.n, grid.side), grid.slabs};
}

}  // namespace vkrnn
