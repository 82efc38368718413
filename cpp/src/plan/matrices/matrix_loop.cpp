#include "matrix_loop.h"

#include <algorithm>

#include "matrix_units.h"
#include "plan/portable/step_kernels.h"

namespace vkrnn {
namespace {

struct MatrixShape {
    std::uint32_t rows, columns, column_groups, depth_groups;

    [[nodiscard]] std::uint32_t subgroups() const { return column_groups * depth_groups; }
    [[nodiscard]] std::int64_t tile_rows(std::int64_t side) const { return rows * side; }
    [[nodiscard]] std::int64_t tile_columns(std::int64_t side) const { return columns * side * column_groups; }
    // Bytes of the sums in shared memory.
    [[nodiscard]] std::int64_t sum_bytes(std::int64_t side) const {
        return depth_groups * tile_rows(side) * (tile_columns(side) + 4) * std::int64_t{sizeof(float)};
    }
};

// Those that were fastest for some size with an earlier version of the kernels on one H200.
constexpr MatrixShape kShapes[] = {{1, 1, 1, 4}, {1, 1, 1, 8}, {1, 1, 1, 16}, {1, 2, 1, 8}, {1, 3, 1, 8}, {2, 1, 1, 16},
                                   {2, 2, 1, 8}, {2, 3, 1, 6}, {2, 2, 2, 4},  {2, 2, 4, 2}, {4, 2, 2, 2}};

// Rates of one of the H200's multiprocessors, fitted to that version's steps.
constexpr double kMicrosecondsPerStep = 3.3;
constexpr double kMicrosecondsPerGroup = 0.4;
constexpr double kFlopsPerMicrosecond = 1.4e6;  // of a float32 product
constexpr double kBytesPerMicrosecond = 4.2e4;

// Whether the hidden state stays within the largest of 1 and its initial values, so that it can be scaled beforehand.
bool is_bounded(const Spec& spec) {
    return std::ranges::all_of(spec.cell().bounds, [&](const Bound& bound) {
        const Activation activation = spec.descriptor.activations.at(bound.activation_slot);
        return activation == Activation::sigmoid || activation == Activation::hard_sigmoid ||
               (activation == Activation::tanh && !bound.positive);
    });
}

// Scales of a row tile's deltas.
std::int64_t scale_count(const MatrixShape& shape, const Spec& spec, const Profile& profile) {
    return spec.gradients ? spec.G() * ceil_div(spec.H, shape.tile_columns(profile.matrix_side)) : 1;
}

bool fits(const MatrixShape& shape, const Profile& profile, std::int64_t scales) {
    constexpr std::int64_t kOtherBytes = 32;
    return shape.subgroups() * profile.subgroup_size <= profile.max_workgroup_invocations &&
           shape.sum_bytes(profile.matrix_side) + scales * std::int64_t{sizeof(float)} + kOtherBytes <=
               profile.max_shared_memory;
}

// Microseconds of one phase's step: what the busiest multiprocessor does.
double phase_cost(const MatrixShape& shape, const Spec& spec, const Profile& profile, std::int64_t products,
                  std::int64_t depth) {
    const std::int64_t side = profile.matrix_side;
    const std::int64_t units = shape.tile_columns(side) / products;
    const std::int64_t groups = ceil_div(spec.N, shape.tile_rows(side)) * ceil_div(spec.H, units) * spec.D();
    const auto busiest = static_cast<double>(ceil_div(groups, multiprocessors(profile)));
    const double halves = halves_of(spec);
    const double flops = 2.0 * static_cast<double>(shape.tile_rows(side) * shape.tile_columns(side) * depth);
    const double bytes = 2 * halves * static_cast<double>((shape.tile_rows(side) + shape.tile_columns(side)) * depth);
    // One subgroup alone waits for each of its loads.
    const double chain = static_cast<double>(depth) / static_cast<double>(side * shape.depth_groups) * 0.05;
    return kMicrosecondsPerStep + chain +
           busiest * (kMicrosecondsPerGroup + flops * halves / 2 / kFlopsPerMicrosecond + bytes / kBytesPerMicrosecond);
}

double step_cost(const MatrixShape& shape, const Spec& spec, const Profile& profile) {
    double microseconds = 0;
    if (spec.gradients) {
        for (const Phase& phase : backward_phases(spec))
            microseconds += 1 + phase_cost(shape, spec, profile, 1, phase.slots * spec.H);
    } else {
        for (const Phase& phase : forward_phases(spec))
            microseconds += phase_cost(shape, spec, profile, phase.gates, spec.H);
    }
    return microseconds;
}

Sizes sizes_of(const MatrixShape& shape) {
    return {{"matrix_rows", shape.rows},
            {"matrix_columns", shape.columns},
            {"column_groups", shape.column_groups},
            {"depth_groups", shape.depth_groups}};
}

MatrixShape with(const MatrixShape& shape, const Sizes& wanted) {
    return {size_or(wanted, "matrix_rows", shape.rows), size_or(wanted, "matrix_columns", shape.columns),
            size_or(wanted, "column_groups", shape.column_groups), size_or(wanted, "depth_groups", shape.depth_groups)};
}

// The planning of one loop.
class MatrixPlan {
public:
    MatrixPlan(PlanBuilder& builder, const Inputs& inputs, const StepBlock& views, std::int64_t regions,
               std::int64_t slots)
        : builder_(builder),
          spec_(builder.spec()),
          weight_(inputs[Argument::recurrent_weight]),
          side_(builder.profile().matrix_side),
          run_blocks_(ceil_div(spec_.H, side_)),
          views_(views) {
        const std::size_t table = matrix_table(builder_);
        largest_ = add_largest(builder_, "largest magnitudes", abi::kLargestCount);
        find_largest(builder_, "largest weight", weight_, largest_, abi::kLargestWeight);
        if (!spec_.gradients) {
            if (spec_.has(Argument::init_state))
                find_largest(builder_, "largest state", inputs[Argument::init_state], largest_, abi::kLargestState);
            if (spec_.has(Argument::mask))
                find_largest(builder_, "largest mask", inputs[Argument::mask], largest_, abi::kLargestMask);
        }
        views_.matrix_table(table, largest_);

        const std::int64_t k_blocks = slots * run_blocks_;
        const std::int64_t block_floats = side_ * side_ * halves_of(spec_) / 2;
        const std::int64_t region = row_tiles() * shape_.rows * k_blocks * block_floats;
        const std::size_t operand = builder_.scratch("operand blocks", spec_.D() * regions * region);
        views_.matrix_operand(operand, regions, region, k_blocks);
        if (spec_.gradients) {
            const std::int64_t row = slots * unit_tiles(1), all = row_tiles() * row;
            views_.tile_scales(builder_.scratch("operand scales", spec_.D() * regions * all), regions, all, row);
        }
        start(regions, slots);
    }

    // One phase's dispatch, with its weights packed before the loop.
    Dispatch forward_phase(const Phase& phase, bool keep) {
        const std::int64_t H = spec_.H, products = phase.gates, columns = shape_.tile_columns(side_);
        MatrixSource source = weights_source();
        source.i_count = H;
        source.i_stride = H;
        source.length = H;
        source.k_stride = 1;
        source.tiles = {columns / products, columns, products, H * H, 0};
        source.tiles.gate_order = gate_order(spec_, phase.first_gate, products);
        return step(phase, "matrices_forward", keep, source, 0);
    }

    Dispatch backward_phase(const Phase& phase) {
        const std::int64_t H = spec_.H;
        MatrixSource source = weights_source();
        source.offset = phase.first_slot * H * H;
        source.i_count = H;
        source.i_stride = 1;
        source.runs = phase.slots;
        source.run_stride = H * H;
        source.length = H;
        source.k_stride = H;
        return step(phase, "matrices_backward", false, source, phase.first_slot * run_blocks_);
    }

private:
    [[nodiscard]] std::int64_t row_tiles() const { return ceil_div(spec_.N, shape_.tile_rows(side_)); }
    [[nodiscard]] std::int64_t unit_tiles(std::int64_t products) const {
        return ceil_div(spec_.H, shape_.tile_columns(side_) / products);
    }

    [[nodiscard]] MatrixSource weights_source() const {
        MatrixSource source;
        source.buffer = weight_;
        source.largest = largest_;
        source.batches = spec_.D();
        source.batch_stride = spec_.G() * spec_.H * spec_.H;
        source.right = true;
        return source;
    }

    [[nodiscard]] std::vector<std::uint32_t> constants(const StepOptions& options) const {
        std::vector<std::uint32_t> made = step_constants(spec_, options, abi::kMatrixConstants);
        set_matrix_constants(made, spec_, builder_.profile());
        made[abi::kLocalSize] = shape_.subgroups() * builder_.profile().subgroup_size;
        made[abi::kMatrixRows] = shape_.rows;
        made[abi::kMatrixColumns] = shape_.columns;
        made[abi::kRowGroups] = 1;
        made[abi::kColumnGroups] = shape_.column_groups;
        made[abi::kDepthGroups] = shape_.depth_groups;
        made[abi::kScaleCount] = u32(scale_count(shape_, spec_, builder_.profile()));
        return made;
    }

    // Fills the operand with what the first step multiplies, and with zeros past the last unit.
    void start(std::int64_t regions, std::int64_t slots) {
        std::vector<std::uint32_t> made = constants({});
        made[abi::kLocalSize] = abi::kElementwiseGroup;
        made.push_back(u32(regions));
        made.push_back(!spec_.gradients);
        const abi::StepPush push{place(builder_.constant("parameters", views_.block()), 0), 0, 0};
        const std::int64_t elements = spec_.N * slots * run_blocks_ * side_;
        builder_.dispatch("start", builder_.kernel("matrix_start", std::move(made)),
                          builder_.groups(ceil_div(elements, abi::kElementwiseGroup), spec_.D()),
                          make_block(push, abi::kStepPushPlaces));
    }

    Dispatch step(const Phase& phase, const std::string& driver, bool keep, const MatrixSource& weights,
                  std::int64_t first_block) {
        const std::int64_t products = std::max<std::int64_t>(weights.tiles.products, 1);
        const std::int64_t tiles = unit_tiles(products);
        const MatrixBlocks blocks =
            pack_blocks(builder_, phase.label + " weights", weights, tiles * shape_.tile_columns(side_) / side_);
        StepBlock views = views_;
        // Of a direction's blocks, in elements of four bytes.
        views.weights(blocks.buffer, 1, blocks.batch_vectors * 4, blocks.k_blocks);
        views.first_depth(first_block);
        const std::size_t params = builder_.constant("parameters", views.block());
        const std::size_t kernel = step_kernel(builder_, driver, constants({phase.number, keep}));
        return step_dispatch(phase.label, kernel, builder_.groups(row_tiles() * tiles, spec_.D()), params);
    }

    PlanBuilder& builder_;
    const Spec& spec_;
    const std::size_t weight_;
    const std::int64_t side_, run_blocks_;
    StepBlock views_;
    std::size_t largest_ = kNoBuffer;
    const MatrixShape shape_ = {builder_.size("matrix_rows"), builder_.size("matrix_columns"),
                                builder_.size("column_groups"), builder_.size("depth_groups")};
};

}  // namespace

bool MatrixLoop::runs_on(const Profile& profile) const {
    return has_matrix_units(profile) &&
           std::ranges::any_of(kShapes, [&](const MatrixShape& shape) { return fits(shape, profile, 1); });
}

Sizes MatrixLoop::sizes(const Profile& /*profile*/, const Sizes& wanted) const {
    Sizes sizes = sizes_of(with(kShapes[0], wanted));
    for (const auto& [name, size] : sizes) require_size(size >= 1 && size <= 32, name, "1 to 32", size);
    return sizes;
}

std::optional<Offer> MatrixLoop::offer(const Spec& spec, const Profile& profile, const Sizes& wanted) const {
    if (spec.dtype == Dtype::float64) return std::nullopt;
    if (!spec.gradients && !is_bounded(spec)) return std::nullopt;
    const std::int64_t most_products = spec.gradients ? 1 : spec.G();
    std::optional<Offer> best;
    for (const MatrixShape& usual : kShapes) {
        const MatrixShape shape = with(usual, wanted);
        if (!fits(shape, profile, scale_count(shape, spec, profile)) || shape.tile_columns(profile.matrix_side) < most_products) continue;
        const double microseconds = static_cast<double>(spec.T) * step_cost(shape, spec, profile);
        if (!best || microseconds < best->microseconds) best = Offer{microseconds, sizes_of(shape)};
    }
    if (best) best->microseconds = unproven(best->microseconds);
    return best;
}

void MatrixLoop::forward(PlanBuilder& builder, const Inputs& inputs, StepBlock views) const {
    const Spec& spec = builder.spec();
    MatrixPlan plan(builder, inputs, views, spec.two_phases() ? 3 : 2, 1);
    Loop loop{spec.T, 0, 1, {}};
    for (const Phase& phase : forward_phases(spec))
        loop.body.push_back(plan.forward_phase(phase, spec.descriptor.has(Flag::training)));
    builder.add(std::move(loop));
}

void MatrixLoop::recompute(PlanBuilder& builder, const BackwardPass& pass) const { add_recompute(builder, pass); }

void MatrixLoop::backward(PlanBuilder& builder, const BackwardPass& pass) const {
    const Spec& spec = builder.spec();
    MatrixPlan plan(builder, pass.inputs, pass.views, 2, spec.G());
    Loop loop{spec.T, static_cast<std::int32_t>(spec.T - 1), -1, {}};
    for (const Phase& phase : backward_phases(spec)) loop.body.push_back(plan.backward_phase(phase));
    Dispatch initial = at_step(loop.body.front(), "initial state", -1);
    builder.add(std::move(loop));
    if (spec.has(Argument::init_state)) builder.add(std::move(initial));
}

}  // namespace vkrnn
