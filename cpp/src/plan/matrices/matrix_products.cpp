#include "matrix_products.h"

#include <algorithm>

#include "matrix_units.h"
#include "plan/cost_table.h"
#include "plan/gpu/gpu.h"
#include "plan/tuning_parameters.h"

namespace vkrnn {
namespace {

constexpr std::int64_t kMinChunk = 32;  // the least k blocks of a slab

// The tile of C that a workgroup computes: matrices of a subgroup, and the most subgroups, along the rows and the
// columns of C.
struct Shape {
    std::uint32_t rows, columns, row_groups, column_groups;

    [[nodiscard]] std::int64_t row_blocks() const { return std::int64_t{rows} * row_groups; }
    [[nodiscard]] std::int64_t column_blocks() const { return std::int64_t{columns} * column_groups; }
    [[nodiscard]] std::uint32_t groups() const { return row_groups * column_groups; }

    // Halves the number of subgroups along the longer side. Returns false if only one is left.
    bool halve() {
        if (groups() == 1) return false;
        std::uint32_t& longer =
            column_groups == 1 || (row_groups > 1 && row_blocks() >= column_blocks()) ? row_groups : column_groups;
        longer /= 2;
        return true;
    }

    static constexpr std::uint32_t kMost = 16;
    static std::uint32_t most_groups(const Profile& profile) {
        return profile.max_workgroup_invocations / profile.subgroup_size;
    }
    static Range column_groups_range(const Profile& profile, const Shape& /*shape*/) {
        return {.least = 1, .most = std::min(kMost, most_groups(profile))};
    }
    static Range row_groups_range(const Profile& profile, const Shape& shape) {
        return {.least = 1,
                .most = std::min(kMost, most_groups(profile) / shape.column_groups),
                .beside = " with these product_column_groups"};
    }
    static std::span<const TuningParameter<Shape>> parameters() {
        constexpr Range kCount{.least = 1, .most = kMost};
        static constexpr TuningParameter<Shape> kAll[] = {
            {"product_rows", &Shape::rows, kCount},
            {"product_columns", &Shape::columns, kCount},
            {"product_column_groups", &Shape::column_groups, column_groups_range},
            {"product_row_groups", &Shape::row_groups, row_groups_range}};
        return kAll;
    }
};

constexpr Shape kUsual{2, 2, 4, 4};
constexpr Shape kOnePart{4, 4, 2, 4};  // without the sums of low parts, registers hold twice as many matrices

// Returns the usual shape of a call's products.
const Shape& usual_shape(const Spec& spec) { return rounds_operands(spec) ? kOnePart : kUsual; }

// How workgroups share C: in tiles, each of which is cut into slabs of `chunk` k blocks.
struct TileGrid {
    Shape shape;
    std::int64_t tiles_m, tiles_n, k_blocks, chunk, slabs;
};

TileGrid grid_of(const Product& p, const Shape& shape, bool allow_slabs, const Profile& profile) {
    const std::int64_t side = profile.matrix_side;
    TileGrid grid{shape, 0, 0, 0, 0, 1};
    grid.tiles_m = ceil_div(p.m, shape.row_blocks() * side);
    grid.tiles_n = ceil_div(p.n, shape.column_blocks() * side);
    grid.k_blocks = ceil_div(p.k, side);
    const std::int64_t tiles = grid.tiles_m * grid.tiles_n * p.batches;
    if (allow_slabs)
        grid.slabs = std::clamp(multiprocessors(profile) / tiles, std::int64_t{1}, ceil_div(grid.k_blocks, kMinChunk));
    grid.chunk = ceil_div(grid.k_blocks, grid.slabs);
    grid.slabs = ceil_div(grid.k_blocks, grid.chunk);
    return grid;
}

// Halves the tiles while there are too few of them for the multiprocessors.
TileGrid best_grid(const Product& p, Shape shape, bool allow_slabs, const Profile& profile) {
    TileGrid grid = grid_of(p, shape, allow_slabs, profile);
    while (4 * grid.tiles_m * grid.tiles_n * p.batches * grid.slabs < 3 * multiprocessors(profile) && shape.halve())
        grid = grid_of(p, shape, allow_slabs, profile);
    return grid;
}

// Describes an operand of a product. `extent` is the number of its rows, or of its columns if it is the right operand.
MatrixSource source_of(const Matrix& matrix, std::int64_t extent, const Product& p, std::size_t absmax, bool right) {
    MatrixSource source;
    source.buffer = matrix.buffer;
    source.absmax = absmax;
    source.offset = matrix.offset;
    source.batches = p.batches;
    source.batch_stride = matrix.batch;
    source.i_count = extent;
    source.i_stride = matrix.columns ? 1 : matrix.ld;
    source.length = p.k;
    source.k_stride = matrix.columns ? matrix.ld : 1;
    source.right = right;
    return source;
}

// The buffers that hold the absmax of other buffers. `of_parts` has one number for each part of a sequence.
struct Absmax {
    std::map<std::size_t, std::size_t> of_buffer, of_parts;
};

// Returns the buffer with the absmax of a matrix's buffer. A plan computes it once.
std::size_t absmax_of(PlanBuilder& builder, const Matrix& matrix) {
    const auto [found, is_new] = builder.notes<Absmax>().of_buffer.emplace(matrix.buffer, kNoBuffer);
    if (is_new) {
        const std::string label = "absmax of " + builder.name_of_buffer(matrix.buffer);
        found->second = add_absmax(builder, label, 1);
        compute_absmax(builder, label, matrix.buffer, matrix.sequence, found->second, 0);
    }
    return found->second;
}

// Returns the same for a part of a sequence, and which of the numbers is that of the part.
std::pair<std::size_t, std::int64_t> absmax_of_part(PlanBuilder& builder, const Product& p) {
    const Spec& spec = builder.spec();
    std::size_t& all = builder.notes<Absmax>().of_parts.emplace(p.a.buffer, kNoBuffer).first->second;
    const std::string label = "absmax of " + builder.name_of_buffer(p.a.buffer);
    if (all == kNoBuffer) builder.before_lane([&] { all = add_absmax(builder, label + " by piece", spec.pieces()); });
    const std::int64_t begin = p.a.offset / (spec.N * p.a.ld);
    const TimeRows rows{begin, begin + p.m / spec.N};
    const std::int64_t part = (spec.gradients ? spec.T - rows.end : rows.begin) / spec.piece_steps;
    compute_absmax(builder, label, p.a.buffer, rows, p.a.ld, all, part);
    return {all, part};
}

}  // namespace

bool MatrixProducts::runs_on(const Profile& profile) const {
    return has_matrix_units(profile) && tiled_.runs_on(profile);
}

Parameters MatrixProducts::parameters(const Profile& profile, const Parameters& wanted) const {
    return parameters_of(with_checked_parameters(kUsual, wanted, profile));
}

std::optional<CostEstimate> MatrixProducts::estimate(const Spec& spec, const Profile& profile, const Costs& costs,
                                                     const Parameters& wanted) const {
    if (spec.dtype == Dtype::float64) return std::nullopt;
    // Parts of operands begin at vectors of four numbers.
    if (spec.piece_steps != 0 && (spec.I % 4 != 0 || spec.D() * spec.G() * spec.H % 4 != 0)) return std::nullopt;
    const Shape shape = with_parameters(usual_shape(spec), wanted);
    // Each subgroup passes a matrix of sums through shared memory.
    const std::int64_t bytes =
        std::int64_t{shape.groups()} * profile.matrix_side * profile.matrix_side * std::int64_t{sizeof(float)};
    if (bytes > profile.max_shared_memory) return std::nullopt;
    const double rate =
        rounds_operands(spec) ? costs.products.rounded_flops_per_us : costs.products.matrix_flops_per_us;
    const double microseconds = costs.products.matrix_call + product_flops(spec) / rate;
    return CostEstimate{microseconds, parameters_of(shape), profile.type == DeviceType::cpu};
}

void MatrixProducts::product(PlanBuilder& builder, const std::string& label, const Product& p, bool independent) const {
    const Profile& profile = builder.profile();
    const Product whole = p.whole();
    const bool is_part = p.whole_m != 0;
    const double flops = 2.0 * static_cast<double>(p.batches * whole.m * p.n) * static_cast<double>(p.k);
    // On a CPU, matrix units are only used in tests. They take products of any size there, so that tests reach them.
    if (flops < costs_of(profile).products.least_matrix_flops && profile.type != DeviceType::cpu)
        return tiled_.product(builder, label, p, independent);

    const std::int64_t size = p.m * p.n;
    const bool allow_slabs = p.c.ld == p.n && (p.batches == 1 || p.c.batch == size);
    TileGrid grid =
        best_grid(whole, with_parameters(usual_shape(builder.spec()), builder.parameters()), allow_slabs, profile);
    const Shape& shape = grid.shape;
    grid.tiles_m = ceil_div(p.m, shape.row_blocks() * profile.matrix_side);
    builder.before_lane([&] { matrix_table(builder); });
    const auto [a_absmax, part] =
        is_part ? absmax_of_part(builder, p) : std::pair(absmax_of(builder, p.a), std::int64_t{0});
    // The absmax of a weight is computed and kept with its blocks.
    const std::size_t b_absmax = p.b.sequence ? absmax_of(builder, p.b) : kNoBuffer;
    MatrixSource left = source_of(p.a, p.m, p, a_absmax, false), right = source_of(p.b, p.n, p, b_absmax, true);
    left.part = is_part;
    left.absmax_at = part;
    const MatrixBlocks a = pack_blocks(builder, label + ": a", left, grid.tiles_m * shape.row_blocks());
    MatrixBlocks b;
    builder.before_lane([&] { b = pack_blocks(builder, label + ": b", right, grid.tiles_n * shape.column_blocks()); });
    Matrix c = p.c;
    if (grid.slabs > 1) c = {builder.scratch(label + " slabs", grid.slabs * p.batches * size), 0, p.n, size, false};

    abi::MatrixProductPush push{};
    push.a = builder.at(a.buffer, a.first);
    push.b = builder.at(b.buffer, b.first);
    push.c = builder.at(c.buffer, c.offset);
    push.a_absmax = builder.at(a_absmax, part);
    push.b_absmax = builder.at(b.buffer, 0);
    push.a_batch = a.batch_vectors;
    push.b_batch = b.batch_vectors;
    push.c_batch = c.batch;
    push.c_slab = p.batches * size;
    push.m = u32(p.m);
    push.n = u32(p.n);
    push.ldc = u32(c.ld);
    push.k_blocks = u32(grid.k_blocks);
    push.chunk = u32(grid.chunk);
    push.batches = u32(p.batches);
    Constants constants;
    set_matrix_constants(constants, {a.parts, b.parts}, profile);
    constants.set(abi::kLocalSize, "workgroup", profile.subgroup_size * shape.groups())
        .set(abi::kMatrixRows, "product_rows", shape.rows)
        .set(abi::kMatrixColumns, "product_columns", shape.columns)
        .set(abi::kRowGroups, "product_row_groups", shape.row_groups)
        .set(abi::kColumnGroups, "product_column_groups", shape.column_groups)
        .set(abi::kDepthGroups, {}, 1)
        .set(abi::kBlocksAhead, "blocks_ahead", a.parts == 1 && b.parts == 1 ? 2 : 1)
        .flag(abi::kTagged, {}, false)
        .stored(builder.stored({c.buffer}), builder.spec().dtype);
    builder.dispatch(label, builder.kernel("matrix_product", std::move(constants)),
                     builder.groups(grid.tiles_m * grid.tiles_n, grid.slabs * p.batches), make_block(push));
    if (grid.slabs > 1)
        add_parts(builder, label + ": add slabs", c.buffer, grid.slabs, p.batches * size, p.c.buffer, p.c.offset);
}

}  // namespace vkrnn
