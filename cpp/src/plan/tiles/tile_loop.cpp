#include "tile_loop.h"

#include <algorithm>

#include "plan/cost_table.h"
#include "plan/gpu/gpu.h"
#include "tiles/tiles_abi.h"

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
        constexpr Range kMultipleOf4{.least = 4, .most = 16, .multiple_of = 4}, kPower{.power_of_two = true};
        static constexpr TuningParameter<TileShape> kAll[] = {
            {"thread_rows", &TileShape::thread_rows, kMultipleOf4},
            {"thread_columns", &TileShape::thread_columns, kMultipleOf4},
            {"row_lanes", &TileShape::row_lanes, kPower},
            {"column_lanes", &TileShape::column_lanes, kPower},
            {"teams", &TileShape::teams, kPower},
            {"depth_block", &TileShape::depth_block, kMultipleOf4}};
        return kAll;
    }
};

// Each shape was the fastest one for some size on an H200, with an earlier version of the kernels. The first is the
// smallest.
constexpr TileShape kShapes[] = {
    {4, 4, 1, 4, 16, 4}, {4, 4, 2, 4, 8, 4}, {4, 4, 2, 4, 32, 4}, {4, 4, 4, 4, 16, 4}, {8, 4, 2, 8, 16, 8},
    {8, 8, 4, 2, 32, 4}, {8, 4, 4, 8, 8, 8}, {8, 8, 4, 4, 16, 4}, {8, 8, 4, 8, 8, 4},
};

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

// Compilers for AMD GPUs may give an invocation no more than 128 registers of 4 bytes. The cell needs some of them, and
// more in float64.
bool stays_in_registers(const TileShape& shape, std::int64_t bytes, const Profile& profile) {
    const std::int64_t most = bytes == 8 ? 80 : 112;
    return !is_amd(profile) || shape.register_elements() * bytes / 4 <= most;
}

// Estimates the microseconds of one phase of a step, which the busiest multiprocessor determines.
double phase_cost(const TileShape& shape, const Spec& spec, const Profile& profile, const TileCosts& costs,
                  std::int64_t columns, std::int64_t products, std::int64_t depth) {
    const std::int64_t units = shape.columns() / products;
    const std::int64_t groups = ceil_div(spec.N, shape.rows()) * ceil_div(columns / products, units) * head_parts(spec);
    const auto busiest = static_cast<double>(ceil_div(groups, multiprocessors(profile, spec)));
    const double flops = 2.0 * static_cast<double>(shape.rows() * shape.columns() * depth);
    const auto bytes = static_cast<double>((shape.rows() + shape.columns()) * depth * element_bytes(spec));
    return costs.step + busiest * (costs.group + flops / costs.flops_per_us + bytes / costs.bytes_per_us);
}

double step_cost(const TileShape& shape, const Spec& spec, const Profile& profile, const TileCosts& costs) {
    const std::int64_t H = spec.head_units();
    double microseconds = 0;
    for (const Phase& phase : phases_of(spec))
        microseconds += spec.gradients ? costs.backward * phase_cost(shape, spec, profile, costs, H, 1, phase.count * H)
                                       : phase_cost(shape, spec, profile, costs, phase.count * H, phase.count, H);
    return microseconds;
}

// Adds one loop's buffers and dispatches to a plan.
class TilePlan {
public:
    TilePlan(PlanBuilder& builder, std::size_t weight)
        : builder_(builder),
          spec_(builder.spec()),
          shape_(with_parameters(kShapes[0], builder.parameters())),
          weight_(weight) {}

    // Adds a buffer for the operand: regions of [slots * H][rows].
    void add_operand(StepBlock& views) {
        views.divide(1);
        const std::int64_t regions = !spec_.gradients && spec_.two_phases() ? 3 : 2;
        const std::int64_t slots = spec_.gradients ? spec_.G() : 1, rows = row_tiles() * shape_.rows();
        const std::size_t buffer = builder_.scratch("operand tiles", parts_ * regions * slots * H * rows);
        views.regions(abi::kTileOperand, buffer, regions, slots * H * rows, 1, H * rows, rows);
    }

    // Adds the dispatch that fills the operand of the first step.
    void start(const StepBlock& views) {
        Constants constants = cell_constants(spec_, {0, 0, 1});
        constants.set(abi::kLocalSize, "workgroup", abi::kElementwiseGroup).stored(views.stored(), spec_.dtype);
        builder_.dispatch("start", builder_.kernel("tiles_start", std::move(constants)),
                          builder_.groups(ceil_div(H * spec_.N, abi::kElementwiseGroup), parts_),
                          step_push(builder_, views), true);
    }

    // Packs the weights of a phase before the loop, and returns its dispatch.
    Dispatch phase(const Phase& phase, StepBlock views) {
        const Weights weights = weights_of(phase);
        const std::int64_t units = shape_.columns() / weights.products;
        const std::int64_t tiles = ceil_div(H, units);
        const std::int64_t padded = ceil_div(weights.depth, shape_.depth_block) * shape_.depth_block;
        const std::int64_t tile = padded * shape_.columns();
        const std::size_t out = builder_.scratch(phase.label + " weights", parts_ * tiles * tile);

        abi::TilePackPush push{};
        push.in_ = builder_.at(weight_, weights.first);
        push.out_ = builder_.at(out, 0);
        push.in_direction = spec_.G() * spec_.H * H;
        push.in_head = H * H;
        push.in_k_slot = weights.in_k_slot;
        push.in_k = weights.in_k;
        push.in_unit = weights.in_unit;
        push.in_slot = weights.in_slot;
        push.depth = u32(weights.depth);
        push.padded_depth = u32(padded);
        push.H = u32(H);
        push.heads = u32(spec_.heads());
        push.units = u32(units);
        push.columns = u32(shape_.columns());
        push.tiles = u32(tiles);
        push.products = u32(weights.products);
        push.gate_order = gate_order(spec_, phase.first, weights.products);
        Constants packing;
        packing.stored(builder_.stored({weight_}), spec_.dtype);
        builder_.dispatch(phase.label + ": pack", builder_.kernel("tile_pack", std::move(packing)),
                          builder_.groups(ceil_div(tiles * tile / 4, abi::kElementwiseGroup), parts_), make_block(push),
                          true);

        views.weights(out, tiles, tile, weights.depth);
        if (spec_.gradients) views.first_depth(phase.first * H);
        const std::size_t kernel =
            builder_.cell_kernel(spec_.gradients ? "tiles_backward" : "tiles_forward", constants(phase, views));
        return step_dispatch(builder_, phase.label, kernel, builder_.groups(row_tiles() * tiles, parts_), views);
    }

private:
    // A phase's products. `first` is the element of the weight at which they begin. in_k, in_unit and in_slot are the
    // strides to the next k, unit and slot, and in_k_slot that to the k of the next slot.
    struct Weights {
        std::int64_t products, depth, first, in_k, in_k_slot, in_unit, in_slot;
    };
    [[nodiscard]] Weights weights_of(const Phase& phase) const {
        const std::int64_t slot = spec_.H * H;
        if (spec_.gradients) return {1, phase.count * H, phase.first * slot, H, slot, 1, 0};
        return {phase.count, H, 0, 1, 0, H, slot};
    }

    [[nodiscard]] std::int64_t row_tiles() const { return ceil_div(spec_.N, shape_.rows()); }

    [[nodiscard]] Constants constants(const Phase& phase, const StepBlock& views) const {
        Constants made = cell_constants(spec_, {phase.number, keeps_training_state(spec_), 1});
        made.set(abi::kLocalSize, "workgroup", shape_.invocations())
            .set(abi::kThreadRows, "thread_rows", shape_.thread_rows)
            .set(abi::kThreadColumns, "thread_columns", shape_.thread_columns)
            .set(abi::kRowLanes, "row_lanes", shape_.row_lanes)
            .set(abi::kColumnLanes, "column_lanes", shape_.column_lanes)
            .set(abi::kTeams, "teams", shape_.teams)
            .set(abi::kDepthBlock, "depth_block", shape_.depth_block)
            .set(abi::kSumSlots, "sum_slots", sum_slots(shape_, element_bytes(spec_), builder_.profile()))
            .stored(views.stored(), spec_.dtype);
        return made;
    }

    PlanBuilder& builder_;
    const Spec& spec_;
    const std::int64_t H = spec_.head_units(), parts_ = head_parts(spec_);
    const TileShape shape_;
    const std::size_t weight_;
};

}  // namespace

bool TileLoop::runs_on(const Profile& profile) const {
    return std::ranges::any_of(kShapes, [&](const TileShape& shape) { return fits(shape, 4, profile); });
}

Parameters TileLoop::parameters(const Profile& profile, const Parameters& wanted) const {
    const auto* usual = std::ranges::find_if(kShapes, [&](const TileShape& shape) { return fits(shape, 4, profile); });
    return parameters_of(with_checked_parameters(*usual, wanted, profile));
}

std::vector<Parameters> TileLoop::variants(const Profile& profile) const {
    std::vector<Parameters> found;
    for (const TileShape& shape : kShapes)
        if (fits(shape, 4, profile)) found.push_back(parameters_of(shape));
    return found;
}

std::optional<CostEstimate> TileLoop::estimate(const Spec& spec, const Profile& profile, const Costs& costs,
                                               const Parameters& wanted) const {
    if (!spec.recurs() || !can_have_parts(spec) || spec.masks_gates()) return std::nullopt;
    const std::int64_t most_products = spec.gradients ? 1 : spec.G();
    // A shape that spills registers is used only if the caller asked for it.
    const auto fits_call = [&](const TileShape& shape, const TileShape& usual) {
        return fits(shape, element_bytes(spec), profile) && shape.columns() >= most_products &&
               (shape != usual || stays_in_registers(shape, element_bytes(spec), profile));
    };
    std::optional<CostEstimate> best =
        cheapest<TileShape>(spec, kShapes, wanted, fits_call,
                            [&](const TileShape& shape) { return step_cost(shape, spec, profile, costs.tiles); });
    if (best) best->only_if_fixed = profile.type == DeviceType::cpu;
    return best;
}

void TileLoop::run(PlanBuilder& builder, const Inputs& inputs, StepBlock views) const {
    TilePlan plan(builder, inputs[Argument::recurrent_weight]);
    plan.add_operand(views);
    if (!builder.spec().gradients) plan.start(views);
    add_loop_of_phases(builder, [&](const Phase& phase) { return plan.phase(phase, views); });
}

}  // namespace vkrnn
