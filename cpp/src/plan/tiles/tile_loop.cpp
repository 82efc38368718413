#include "tile_loop.h"

#include <algorithm>

#include "plan/portable/step_kernels.h"
#include "plan/tuning_parameters.h"

namespace vkrnn {
namespace {

struct TileShape {
    std::uint32_t thread_rows, thread_columns;  // elements of the tile per invocation
    std::uint32_t row_lanes, column_lanes;      // invocations of a team along the tile's rows and columns
    std::uint32_t teams;                        // teams of a workgroup; each sums a part of k
    std::uint32_t depth_block;                  // k that a team holds in shared memory at a time

    [[nodiscard]] std::int64_t rows() const { return std::int64_t{thread_rows} * row_lanes; }
    [[nodiscard]] std::int64_t columns() const { return std::int64_t{thread_columns} * column_lanes; }
    [[nodiscard]] std::uint32_t invocations() const { return row_lanes * column_lanes * teams; }
    // Return the elements in shared memory: of the blocks that all teams work on, and of one team's sums.
    [[nodiscard]] std::int64_t block_elements() const {
        return std::int64_t{teams} * depth_block * (rows() + columns());
    }
    [[nodiscard]] std::int64_t sum_elements() const { return rows() * columns(); }
    // Returns the elements in an invocation's registers: sums, operands, and the operands that it loads meanwhile.
    [[nodiscard]] std::int64_t register_elements() const {
        const std::int64_t team = std::int64_t{row_lanes} * column_lanes;
        const std::int64_t loads =
            ceil_div(depth_block * rows() / 4, team) + ceil_div(depth_block * columns() / 4, team);
        return std::int64_t{thread_rows} * thread_columns + thread_rows + thread_columns + 4 * loads;
    }
    bool operator==(const TileShape&) const = default;

    static std::span<const TuningParameter<TileShape>> parameters() {
        constexpr Range kFours{.least = 4, .most = 16, .multiple_of = 4}, kPower{.power_of_two = true};
        static constexpr TuningParameter<TileShape> kAll[] = {{"thread_rows", &TileShape::thread_rows, kFours},
                                                              {"thread_columns", &TileShape::thread_columns, kFours},
                                                              {"row_lanes", &TileShape::row_lanes, kPower},
                                                              {"column_lanes", &TileShape::column_lanes, kPower},
                                                              {"teams", &TileShape::teams, kPower},
                                                              {"depth_block", &TileShape::depth_block, kFours}};
        return kAll;
    }
};

// Each shape was the fastest one for some size on an H200, with an earlier version of the kernels. The first is the
// smallest.
constexpr TileShape kShapes[] = {
    {4, 4, 1, 4, 16, 4}, {4, 4, 2, 4, 8, 4}, {4, 4, 2, 4, 32, 4}, {4, 4, 4, 4, 16, 4}, {8, 4, 2, 8, 16, 8},
    {8, 8, 4, 2, 32, 4}, {8, 4, 4, 8, 8, 8}, {8, 8, 4, 4, 16, 4}, {8, 8, 4, 8, 8, 4},
};

// Rates of one multiprocessor of an H200, fitted to the steps of that version.
constexpr double kMicrosecondsPerStep = 2.5;
constexpr double kMicrosecondsPerGroup = 0.5;
constexpr double kBackward = 1.2;  // relative to a forward step with the same products
constexpr double kFlopsPerMicrosecond = 3.5e5;
constexpr double kBytesPerMicrosecond = 4.2e4;

std::int64_t element_bytes(const Spec& spec) { return static_cast<std::int64_t>(compute_bytes(spec.dtype)); }

// Returns how many teams' sums are in shared memory at a time: all, or as many as take no more than the blocks do or a
// third of the memory.
std::uint32_t sum_slots(const TileShape& shape, std::int64_t bytes, const Profile& profile) {
    std::uint32_t slots = shape.teams;
    const std::int64_t room = std::max(std::int64_t{profile.max_shared_memory} / 3, shape.block_elements() * bytes);
    while (slots > 1 && slots * shape.sum_elements() * bytes > room) slots /= 2;
    return slots;
}

bool fits(const TileShape& shape, std::int64_t bytes, const Profile& profile) {
    const std::uint32_t lanes = shape.row_lanes * shape.column_lanes;
    const std::int64_t elements =
        std::max(shape.block_elements(), sum_slots(shape, bytes, profile) * shape.sum_elements());
    return lanes <= profile.subgroup_size && profile.subgroup_size % lanes == 0 &&
           shape.invocations() % profile.subgroup_size == 0 &&
           shape.invocations() <= std::min(profile.max_workgroup_invocations, profile.max_workgroup_size_x) &&
           elements * bytes <= profile.max_shared_memory;
}

// Compilers for AMD GPUs may give an invocation no more than 128 registers of 4 bytes. The cell needs some of them.
bool stays_in_registers(const TileShape& shape, std::int64_t bytes, const Profile& profile) {
    constexpr std::int64_t kMost = 112;
    return !is_amd(profile) || shape.register_elements() * bytes / 4 <= kMost;
}

// Estimates the microseconds of one phase of a step, which the busiest multiprocessor determines.
double phase_cost(const TileShape& shape, const Spec& spec, const Profile& profile, std::int64_t columns,
                  std::int64_t products, std::int64_t depth) {
    const std::int64_t units = shape.columns() / products;
    const std::int64_t groups = ceil_div(spec.N, shape.rows()) * ceil_div(columns / products, units) * spec.D();
    const auto busiest = static_cast<double>(ceil_div(groups, multiprocessors(profile)));
    const double flops = 2.0 * static_cast<double>(shape.rows() * shape.columns() * depth);
    const auto bytes = static_cast<double>((shape.rows() + shape.columns()) * depth * element_bytes(spec));
    return kMicrosecondsPerStep +
           busiest * (kMicrosecondsPerGroup + flops / kFlopsPerMicrosecond + bytes / kBytesPerMicrosecond);
}

double step_cost(const TileShape& shape, const Spec& spec, const Profile& profile) {
    double microseconds = 0;
    if (spec.gradients) {
        for (const Phase& phase : backward_phases(spec))
            microseconds += kBackward * phase_cost(shape, spec, profile, spec.H, 1, phase.slots * spec.H);
    } else {
        for (const Phase& phase : forward_phases(spec))
            microseconds += phase_cost(shape, spec, profile, phase.gates * spec.H, phase.gates, spec.H);
    }
    return microseconds;
}

// Adds one loop's buffers and dispatches to a plan.
class TilePlan {
public:
    TilePlan(PlanBuilder& builder, std::size_t weight)
        : builder_(builder), spec_(builder.spec()), shape_(with_sizes(kShapes[0], builder.sizes())), weight_(weight) {}

    // Adds a buffer for the operand: regions of [slots * H][rows].
    void add_operand(StepBlock& views, std::int64_t regions, std::int64_t slots) {
        const std::int64_t rows = row_tiles() * shape_.rows();
        const std::size_t buffer = builder_.scratch("operand tiles", spec_.D() * regions * slots * spec_.H * rows);
        views.tile_operand(buffer, regions, slots, rows);
    }

    // Adds the dispatch that fills the operand of the first step.
    void start(const StepBlock& views) {
        std::vector<std::uint32_t> constants = step_constants(spec_, {}, abi::kStepConstants);
        constants[abi::kLocalSize] = abi::kElementwiseGroup;
        const abi::StepPush push{place(builder_.constant("parameters", views.block()), 0), 0, 0};
        builder_.dispatch("start", builder_.kernel("tiles_start", std::move(constants)),
                          builder_.groups(ceil_div(spec_.H * spec_.N, abi::kElementwiseGroup), spec_.D()),
                          make_block(push, abi::kStepPushPlaces), true);
    }

    // Packs the weights of a phase before the loop, and returns its dispatch. `first` is the element of the weight at
    // which a product begins. in_k, in_unit and in_slot are the strides to the next k, unit and slot.
    struct Weights {
        std::int64_t products, depth, first, in_k, in_unit, in_slot;
    };
    Dispatch phase(const Phase& phase, const std::string& driver, StepBlock views, bool keep, const Weights& weights) {
        const std::int64_t units = shape_.columns() / weights.products;
        const std::int64_t tiles = ceil_div(spec_.H, units);
        const std::int64_t padded = ceil_div(weights.depth, shape_.depth_block) * shape_.depth_block;
        const std::int64_t tile = padded * shape_.columns();
        const std::size_t packed = builder_.scratch(phase.label + " weights", spec_.D() * tiles * tile);

        abi::TilePackPush push{};
        push.in_ = builder_.at(weight_, weights.first);
        push.out_ = builder_.at(packed, 0);
        push.in_direction = spec_.G() * spec_.H * spec_.H;
        push.in_k = weights.in_k;
        push.in_unit = weights.in_unit;
        push.in_slot = weights.in_slot;
        push.depth = u32(weights.depth);
        push.padded_depth = u32(padded);
        push.H = u32(spec_.H);
        push.units = u32(units);
        push.columns = u32(shape_.columns());
        push.tiles = u32(tiles);
        push.products = u32(weights.products);
        push.gate_order = gate_order(spec_, phase.first_gate, weights.products);
        builder_.dispatch(phase.label + ": pack", builder_.kernel("tile_pack", {}),
                          builder_.groups(ceil_div(tiles * tile, abi::kElementwiseGroup), spec_.D()),
                          make_block(push, abi::kTilePackPlaces), true);

        views.weights(packed, tiles, tile, weights.depth);
        const std::size_t params = builder_.constant("parameters", views.block());
        const std::size_t kernel = step_kernel(builder_, driver, constants({phase.number, keep}));
        return step_dispatch(phase.label, kernel, builder_.groups(row_tiles() * tiles, spec_.D()), params);
    }

private:
    [[nodiscard]] std::int64_t row_tiles() const { return ceil_div(spec_.N, shape_.rows()); }

    [[nodiscard]] std::vector<std::uint32_t> constants(const StepOptions& options) const {
        std::vector<std::uint32_t> made = step_constants(spec_, options, abi::kTileConstants);
        made[abi::kLocalSize] = shape_.invocations();
        made[abi::kThreadRows] = shape_.thread_rows;
        made[abi::kThreadColumns] = shape_.thread_columns;
        made[abi::kRowLanes] = shape_.row_lanes;
        made[abi::kColumnLanes] = shape_.column_lanes;
        made[abi::kTeams] = shape_.teams;
        made[abi::kDepthBlock] = shape_.depth_block;
        made[abi::kSumSlots] = sum_slots(shape_, element_bytes(spec_), builder_.profile());
        return made;
    }

    PlanBuilder& builder_;
    const Spec& spec_;
    const TileShape shape_;
    const std::size_t weight_;
};

}  // namespace

bool TileLoop::runs_on(const Profile& profile) const {
    return std::ranges::any_of(kShapes, [&](const TileShape& shape) { return fits(shape, 4, profile); });
}

Sizes TileLoop::sizes(const Profile& profile, const Sizes& wanted) const {
    const auto* usual = std::ranges::find_if(kShapes, [&](const TileShape& shape) { return fits(shape, 4, profile); });
    return sizes_of(with_checked_sizes(*usual, wanted, profile));
}

std::vector<Sizes> TileLoop::variants(const Profile& profile) const {
    std::vector<Sizes> found;
    for (const TileShape& shape : kShapes)
        if (fits(shape, 4, profile)) found.push_back(sizes_of(shape));
    return found;
}

std::optional<Offer> TileLoop::offer(const Spec& spec, const Profile& profile, const Sizes& wanted) const {
    const std::int64_t most_products = spec.gradients ? 1 : spec.G();
    std::optional<Offer> best;
    for (const TileShape& usual : kShapes) {
        const TileShape shape = with_sizes(usual, wanted);
        if (!fits(shape, element_bytes(spec), profile) || shape.columns() < most_products) continue;
        // A shape that spills registers is used only if the caller asked for it.
        if (shape == usual && !stays_in_registers(shape, element_bytes(spec), profile)) continue;
        const double microseconds = static_cast<double>(spec.T) * step_cost(shape, spec, profile);
        if (!best || microseconds < best->microseconds) best = Offer{microseconds, sizes_of(shape)};
    }
    if (best) best->microseconds = on_gpu(profile, best->microseconds);
    return best;
}

void TileLoop::forward(PlanBuilder& builder, const Inputs& inputs, StepBlock views) const {
    const Spec& spec = builder.spec();
    const std::int64_t H = spec.H;
    TilePlan plan(builder, inputs[Argument::recurrent_weight]);
    plan.add_operand(views, spec.two_phases() ? 3 : 2, 1);
    plan.start(views);
    Loop loop{spec.T, 0, 1, {}};
    for (const Phase& phase : forward_phases(spec))
        loop.body.push_back(plan.phase(phase, "tiles_forward", views, spec.descriptor.has(Flag::training),
                                       {phase.gates, H, 0, 1, H, H * H}));
    builder.add(std::move(loop));
}

void TileLoop::recompute(PlanBuilder& builder, const BackwardPass& pass) const { add_recompute(builder, pass); }

void TileLoop::backward(PlanBuilder& builder, const BackwardPass& pass) const {
    const Spec& spec = builder.spec();
    const std::int64_t H = spec.H;
    TilePlan plan(builder, pass.inputs[Argument::recurrent_weight]);
    StepBlock all = pass.views;
    plan.add_operand(all, 2, spec.G());
    Loop loop{spec.T, static_cast<std::int32_t>(spec.T - 1), -1, {}};
    for (const Phase& phase : backward_phases(spec)) {
        StepBlock views = all;
        views.first_depth(phase.first_slot * H);
        loop.body.push_back(
            plan.phase(phase, "tiles_backward", views, false, {1, phase.slots * H, phase.first_slot * H * H, H, 1, 0}));
    }
    Dispatch initial = at_step(loop.body.front(), "initial state", -1);
    builder.add(std::move(loop));
    if (spec.has(Argument::init_state)) builder.add(std::move(initial));
}

}  // namespace vkrnn
