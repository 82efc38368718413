#include "persistent_loop.h"

#include <algorithm>
#include <span>

#include "matrix_cost.h"
#include "plan/cost_table.h"
#include "plan/gpu/gpu.h"

namespace vkrnn {
namespace {

static_assert(abi::kPersistentConstants <= abi::kStored, "the stored types' constants come last");

constexpr MatrixShape kUsualShape{1, 1, 1, 8};
constexpr std::uint32_t kAllBlocks = 1U << 16U;  // as parameter `kept_blocks`: more than there are
constexpr std::int64_t kFewBlocks = 4;           // that registers hold if shared memory holds the others
constexpr std::uint32_t kSomeBlocks = 8;         // as parameter `kept_blocks`: see PersistentLoop::estimate
constexpr std::uint32_t kMaxSpins = 1U << 20U;   // about a second on a GPU that reads memory in every spin iteration
constexpr std::uint32_t kMaxSpinsOfLane = 1U << 17U;  // because other lanes may hold the workgroups back
constexpr std::uint32_t kMaxSpinsOnCpu = 1U << 12U;   // because few workgroups run at once
constexpr std::int64_t kMostSteps = 4096;             // of a dispatch, so that none takes long

// The tuning parameters besides the shape of the tile.
struct Keeping {
    std::uint32_t kept_blocks = kAllBlocks;  // the most k blocks of weights that a subgroup keeps
    std::uint32_t tagged = 0;                // 1: workgroups wait until words have the step's tag
    std::uint32_t shared_weights = 1;        // 1: if it is faster, shared memory holds most of the weights
    std::uint32_t max_spins = kMaxSpins;     // spin iterations after which a waiting workgroup gives up

    static std::span<const TuningParameter<Keeping>> parameters() {
        static constexpr TuningParameter<Keeping> kAll[] = {
            {"kept_blocks", &Keeping::kept_blocks, Range{.least = 1}},
            {"tagged", &Keeping::tagged, Range{.most = 1}},
            {"shared_weights", &Keeping::shared_weights, Range{.most = 1}},
            {"max_spins", &Keeping::max_spins, Range{}}};
        return kAll;
    }
};

Keeping usual_keeping(const Profile& profile, std::int64_t lanes = 1) {
    if (profile.type == DeviceType::cpu) return {.max_spins = kMaxSpinsOnCpu};
    return {.max_spins = lanes > 1 ? kMaxSpinsOfLane : kMaxSpins};
}

Keeping keeping_of(const Parameters& parameters) { return with_parameters(Keeping{}, parameters); }

Parameters all_parameters(const MatrixShape& shape, const Keeping& keeping) {
    Parameters parameters = parameters_of(shape);
    parameters.merge(parameters_of(keeping));
    return parameters;
}

// What follows from a shape and a call: the workgroups, and what each invocation holds.
struct Layout {
    std::int64_t groups, kept_blocks, shared_blocks = 0, registers, invocations, cells;
    bool streams;  // whether some weights are loaded in every step
    bool whole;    // whether all subgroups keep as many blocks, without padding units
    bool tagged;   // whether workgroups wait by tags, which is faster if a subgroup loads few blocks

    Layout(const MatrixShape& shape, const Spec& spec, const Profile& profile, const PersistentCosts& costs,
           const Parameters& wanted, const Keeping& usual) {
        const Keeping most = with_parameters(usual, wanted);
        const std::int64_t side = profile.matrix_side;
        const std::int64_t products = spec.gradients ? 1 : spec.G();
        const std::int64_t blocks = ceil_div(spec.head_units(), side) * (spec.gradients ? spec.G() : 1);
        const std::int64_t units = shape.tile_columns(side) / products;
        groups = ceil_div(spec.N, shape.tile_rows(side)) * ceil_div(spec.head_units(), units) * spec.D() * spec.heads();
        const std::int64_t all = ceil_div(blocks, shape.depth_groups);
        kept_blocks = std::min<std::int64_t>(all, most.kept_blocks);
        streams = kept_blocks < all;
        whole = spec.head_units() % side == 0 && kept_blocks * shape.depth_groups <= blocks;
        const std::int64_t loaded_blocks = kept_blocks * shape.rows * shape.column_groups;
        const std::int64_t products_of_loaded = loaded_blocks * shape.columns * shape.depth_groups;
        const Parts parts = loop_parts(spec);
        const double most_products = parts.left > 1 ? costs.most_tagged_products : costs.most_rounded_tagged_products;
        const bool few = spec.gradients ? static_cast<double>(products_of_loaded) <= most_products
                                        : static_cast<double>(loaded_blocks) <= costs.most_tagged_blocks;
        const bool gains = few && !streams && profile.type != DeviceType::cpu;
        tagged = with_parameters(Keeping{.tagged = gains}, wanted).tagged != 0;
        invocations = std::int64_t{shape.subgroups()} * profile.subgroup_size;
        cells = ceil_div(shape.tile_rows(side) * units, invocations);
        registers = registers_for(shape, spec);
        // Forward, no shape gains by this whose weights registers could not hold.
        if (!tagged && parts.right == 1 && most.shared_weights != 0 && (spec.gradients || holds_registers(profile)))
            share_memory(shape, spec, profile, all);
    }

    [[nodiscard]] bool fits(const Spec& spec, const Profile& profile) const {
        return !(tagged && streams) && holds_registers(profile) && groups <= multiprocessors(profile, spec);
    }

    // Returns the bytes of shared memory that hold weights.
    [[nodiscard]] std::int64_t shared_bytes(const MatrixShape& shape, const Spec& spec) const {
        return shared_blocks * shape.columns * loop_parts(spec).right * invocations * kVectorBytes;
    }

private:
    [[nodiscard]] bool holds_registers(const Profile& profile) const {
        return registers <= std::min(kMostRegisters, registers_of(profile) / invocations);
    }

    // Estimates the registers of an invocation. A half-precision matrix takes four of them, a matrix of sums eight.
    // Forward kernels with one part were faster with 28 registers in memory than with weights that are loaded in every
    // step.
    [[nodiscard]] std::int64_t registers_for(const MatrixShape& shape, const Spec& spec) const {
        const Parts parts = loop_parts(spec);
        const std::int64_t rows = shape.rows, columns = shape.columns;
        const std::int64_t loaded =
            (tagged ? kept_blocks : 1) * rows * parts.left +
            (streams ? shape.blocks_ahead * (rows * parts.left + columns * parts.right) + columns * parts.right : 0);
        return 4 * (kept_blocks * columns * parts.right + loaded) + 8 * rows * columns +
               (spec.gradients ? 24 + 4 * spec.G() * cells : (parts.right > 1 ? 40 : 24));
    }

    // Puts all weights but a few into shared memory if they fit. The registers are then free for loads of the left
    // operand, which the compiler moves ahead.
    void share_memory(const MatrixShape& shape, const Spec& spec, const Profile& profile, std::int64_t all) {
        const std::int64_t few = std::min(kept_blocks, kFewBlocks);
        if ((all - few) * shape.columns * invocations * kVectorBytes > free_shared_memory(shape, profile)) return;
        kept_blocks = few;
        shared_blocks = all - few;
        streams = false;
        registers = registers_for(shape, spec);
    }
};

// Estimates the microseconds of a step that keeps all its weights.
double keeping_step_cost(const MatrixShape& shape, const Layout& layout, const Spec& spec, const Profile& profile,
                         const PersistentCosts& costs) {
    const std::int64_t side = profile.matrix_side, rows = shape.tile_rows(side);
    const std::int64_t blocks = layout.kept_blocks + layout.shared_blocks, depth_blocks = blocks * shape.depth_groups;
    const std::int64_t matrices = std::int64_t{shape.rows} * shape.columns * shape.column_groups;
    const auto kept = static_cast<double>(blocks), more_cells = static_cast<double>(layout.cells - 1);
    const bool sixteen = shape.depth_groups >= 16;
    if (spec.gradients) {
        const PersistentCosts::Backward& pass = costs.backward;
        const auto parts = static_cast<double>(loop_parts(spec).left);
        return pass.step + pass.product * parts / 2 * static_cast<double>(matrices * depth_blocks) +
               pass.more_block * std::max(0.0, kept - pass.register_blocks) +
               (layout.tagged
                    ? (sixteen ? pass.sixteen : 0) + pass.waiting_block * kept * static_cast<double>(layout.groups)
                    : pass.block * kept) +
               static_cast<double>(spec.G()) *
                   (pass.tile * static_cast<double>(matrices - 1) + pass.delta * more_cells);
    }
    // Column groups of a multiprocessor share its cache, but tagged words bypass it, so each group loads them again.
    const Parts parts = loop_parts(spec);
    const std::int64_t depth = depth_blocks * side;
    const std::int64_t loaded_rows = layout.tagged ? std::min(spec.N, rows) * shape.column_groups : rows;
    const auto bytes = static_cast<double>(2 * parts.left * loaded_rows * depth * layout.groups);
    const auto flops = static_cast<double>(2 * parts.products() * rows * shape.tile_columns(side) * depth);
    const auto sums = static_cast<double>(matrices * shape.depth_groups);
    const PersistentCosts::Forward& pass = costs.forward;
    return bytes / pass.bytes_per_us + flops / pass.flops_per_us + pass.step + (layout.tagged ? 0 : pass.count) +
           (sixteen ? pass.sixteen : 0) + pass.sum * std::max(0.0, sums - pass.free_sums) +
           (pass.block + pass.block_row * shape.rows) * kept + pass.cell * more_cells;
}

std::vector<MatrixShape> keeping_shapes() {
    std::vector<MatrixShape> shapes;
    for (const std::uint32_t rows : {1U, 2U})
        for (const std::uint32_t columns : {1U, 2U, 3U, 4U})
            for (const std::uint32_t column_groups : {1U, 2U, 4U})
                for (const std::uint32_t depth_groups : {2U, 4U, 8U, 12U, 16U})
                    shapes.push_back({rows, columns, column_groups, depth_groups});
    return shapes;
}

}  // namespace

bool PersistentLoop::runs_on(const Profile& profile) const { return has_matrix_units(profile); }

Parameters PersistentLoop::parameters(const Profile& profile, const Parameters& wanted) const {
    return all_parameters(with_checked_parameters(kUsualShape, wanted, profile),
                          with_checked_parameters(usual_keeping(profile), wanted, profile));
}

std::vector<Parameters> PersistentLoop::variants(const Profile& /*profile*/) const {
    std::vector<Parameters> found;
    for (const MatrixShape& shape : keeping_shapes())
        if (shape.column_groups == 1 && shape.depth_groups >= 8 && shape.rows * shape.columns <= 4)
            found.push_back(parameters_of(shape));
    for (const MatrixShape& shape : loading_shapes())  // for states whose weights do not fit
        if (shape.rows * shape.columns * shape.column_groups >= 8) found.push_back(parameters_of(shape));
    return found;
}

std::optional<CostEstimate> PersistentLoop::estimate(const Spec& spec, const Profile& profile, const Costs& costs,
                                                     const Parameters& wanted) const {
    if (!spec.recurs() || !can_have_parts(spec) || spec.masks_gates()) return std::nullopt;
    if (!can_run_many_steps(spec)) return std::nullopt;
    if (!spec.gradients && !is_bounded(spec)) return std::nullopt;
    // Returns the cheapest of the shapes, with each of the keepings, whose numbers of kept blocks are limits.
    const auto cheapest_of = [&](std::span<const MatrixShape> shapes, std::initializer_list<Keeping> keepings,
                                 const auto& step_cost) {
        std::optional<CostEstimate> best;
        for (const MatrixShape& usual : shapes) {
            const MatrixShape shape = with_parameters(usual, wanted);
            if (spec.gradients && usual.blocks_ahead > 1) continue;
            if (!fits(shape, spec, profile)) continue;
            for (const Keeping& each : keepings) {
                const Layout layout(shape, spec, profile, costs.persistent, wanted, each);
                if (!layout.fits(spec, profile)) continue;
                const double microseconds = static_cast<double>(spec.T) * step_cost(shape, layout);
                if (best && best->microseconds <= microseconds) continue;
                Keeping keeping = with_parameters(usual_keeping(profile, spec.lanes), wanted);
                keeping.kept_blocks = u32(layout.kept_blocks);
                keeping.tagged = layout.tagged;
                keeping.shared_weights = layout.shared_blocks > 0;
                best = CostEstimate{microseconds, all_parameters(shape, keeping)};
            }
        }
        return best;
    };
    const auto keeping = [&](const MatrixShape& shape, const Layout& layout) {
        return keeping_step_cost(shape, layout, spec, profile, costs.persistent);
    };
    const auto loading = [&](const MatrixShape& shape, const Layout& layout) {
        const bool gains = !layout.streams &&
                           static_cast<double>(layout.kept_blocks) <= costs.persistent.most_gainful_blocks &&
                           shape.column_groups == 1 && loop_parts(spec).right > 1;
        const bool delays = layout.streams && !spec.gradients && loop_parts(spec).right == 1;
        return loading_step_cost(shape, spec, profile, costs.matrices) - (gains ? costs.persistent.saved_loads : 0) +
               (delays ? costs.persistent.rounded_loads : 0) +
               (weights_stay_in_cache(spec, costs.matrices) ? -costs.persistent.saved_dispatch
                                                            : costs.persistent.beyond_cache);
    };
    std::optional<CostEstimate> best = cheapest_of(keeping_shapes(), {{}}, keeping);
    // On an H200, forward steps with tags were always faster if they kept their weights. Without tags, steps with one
    // part were, too, by 0.5 to 1.2 us; with two parts, the tile matters and not whether weights are kept. Backward
    // steps with two parts gained next to nothing by loading weights in this loop. Those with one part took 0.75
    // to 1.02 of the time of a dispatch per step, and were fastest if they kept about as many blocks as they loaded,
    // one block ahead.
    bool loads = false;
    if (spec.gradients && loop_parts(spec).left == 1) {
        const std::optional<CostEstimate> loaded = cheapest_of(
            loading_shapes(), {{.kept_blocks = kSomeBlocks}, {.kept_blocks = 1, .shared_weights = 0}}, loading);
        loads = loaded && (!best || loaded->microseconds < best->microseconds);
        if (loads) best = loaded;
    } else if (!spec.gradients) {
        const std::optional<CostEstimate> loaded =
            cheapest_of(loading_shapes(), {{.kept_blocks = 1, .shared_weights = 0}, {}}, loading);
        if (best && keeping_of(best->parameters).tagged != 0 && loaded)
            best->microseconds = std::min(best->microseconds, loaded->microseconds);
        else if (loaded)
            best = loaded;
    }
    if (!best) return best;
    const LaneCosts::Ratios& ratios = spec.gradients ? costs.lanes.backward : costs.lanes.forward;
    loads |= !spec.gradients && keeping_of(best->parameters).tagged == 0;
    best->ratio = loads ? ratios.loading : ratios.kept;
    best->microseconds += costs.persistent.dispatch;
    best->only_if_fixed = profile.type == DeviceType::cpu;
    return best;
}

// Adds the dispatches of all steps. Each is followed by one that runs the same steps again if the first gave up.
void PersistentLoop::run(PlanBuilder& builder, const Inputs& inputs, StepBlock views) const {
    const Spec& spec = builder.spec();
    const Phase phase = phases_of(spec).front();
    const Keeping keeping = keeping_of(builder.parameters());
    MatrixPlan plan(builder, inputs, views, keeping.tagged != 0);
    const MatrixPlan::Weights weights = plan.pack_weights(phase);
    const std::int64_t cells = 1 + plan.parts() * plan.row_tiles();
    const std::size_t barriers = builder.scratch("barriers", cells * abi::kCounterBytes / std::int64_t{sizeof(float)});
    builder.clear(barriers);
    plan.views().address(abi::kBarriers, 0, barriers);
    plan.views().address(abi::kBarriers, 1, builder.failed_waits());

    const Layout layout(shape_of(builder), spec, builder.profile(), costs_of(builder.profile()).persistent,
                        builder.parameters(), {});
    const std::int64_t steps = steps_in_dispatch(spec, kMostSteps);
    Loop loop = loop_over(spec, steps);
    for (const bool alone : {false, true}) {
        Constants constants = plan.constants({phase.number, keeps_training_state(spec)}, layout.tagged && !alone);
        constants.set(abi::kKeptBlocks, "kept_blocks", u32(layout.kept_blocks))
            .flag(abi::kStreams, "streams", layout.streams)
            .flag(abi::kAlone, "alone", alone)
            .set(abi::kMaxSpins, "max_spins", keeping.max_spins)
            .flag(abi::kPersistentToInitial, "to_initial", spec.passes_to_initial())
            .flag(abi::kWholeBlocks, "whole_blocks", layout.tagged && layout.whole)
            .set(abi::kSharedBlocks, "shared_blocks", alone ? 0 : u32(layout.shared_blocks));
        Dispatch made = plan.step(phase, "persistent", weights, std::move(constants), u32(steps),
                                  alone ? 0 : layout.shared_bytes(shape_of(builder), spec));
        if (alone) {
            made.label += ", again";
            made.groups = builder.groups(plan.row_tiles(), plan.parts());
        }
        loop.body.push_back(std::move(made));
    }
    builder.add(std::move(loop), steps);
}

}  // namespace vkrnn
