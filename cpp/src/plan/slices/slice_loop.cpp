#include "slice_loop.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "plan/cost_table.h"
#include "plan/gpu/gpu.h"
#include "slices/slices_abi.h"

namespace vkrnn {
namespace {

constexpr std::uint32_t kMostVec4s = 256;  // vec4s of weights of an invocation; the loop over them is unrolled

struct SliceShape {
    std::uint32_t lanes;           // invocations that share the products of some units
    std::uint32_t units;           // number of these units
    std::uint32_t rows;            // batch rows of a workgroup
    std::uint32_t register_vec4s;  // vec4s of its own weights that an invocation keeps in registers
    std::uint32_t steps;           // most steps of one dispatch
    std::uint32_t heads;           // heads of a workgroup

    static Range lanes_range(const Profile& profile, const SliceShape& /*shape*/) {
        return {.most = profile.subgroup_size, .power_of_two = true, .of_what = kSubgroup};
    }
    static std::span<const TuningParameter<SliceShape>> parameters() {
        static constexpr TuningParameter<SliceShape> kAll[] = {
            {"slice_lanes", &SliceShape::lanes, lanes_range},
            {"slice_units", &SliceShape::units, Range{.most = 16, .power_of_two = true}},
            {"slice_rows", &SliceShape::rows, Range{.most = 8, .power_of_two = true}},
            {"register_vec4s", &SliceShape::register_vec4s, Range{.most = kMostVec4s}},
            {"slice_steps", &SliceShape::steps, Range{.least = 1, .most = 1U << 30U}},
            {"slice_heads", &SliceShape::heads, Range{.least = 1}}};
        return kAll;
    }
};

constexpr SliceShape kUsual{4, 1, 1, 16, 4096, 1};
constexpr std::int64_t kVec4Bytes = 16;

// The layout of a call's work, forward or backward.
struct Layout {
    SliceShape shape;
    std::int64_t products, depth, head_units, parts;  // `parts`: parts of a direction's heads
    std::int64_t runs, invocations, register_vec4s, shared_vec4s, shared_bytes;

    Layout(SliceShape wanted, const Spec& spec, const Profile& profile)
        : shape(wanted),
          products(spec.gradients ? 1 : spec.G()),
          depth((spec.gradients ? spec.G() : 1) * spec.head_units()),
          head_units(spec.head_units()),
          parts(ceil_div(spec.heads(), shape.heads)) {
        runs = spec.recurs() ? ceil_div(ceil_div(depth, 4), shape.lanes) : 0;
        invocations =
            ceil_div(ceil_div(units(), shape.units) * shape.lanes, profile.subgroup_size) * profile.subgroup_size;
        register_vec4s = std::min<std::int64_t>(shape.register_vec4s, vec4s());
        shared_bytes =
            std::max<std::int64_t>(std::int64_t{2} * shape.heads * shape.rows * runs * shape.lanes, 1) * kVec4Bytes;
        const std::int64_t room = profile.max_shared_memory - shared_bytes - kVec4Bytes;
        shared_vec4s = std::clamp<std::int64_t>(room / (invocations * kVec4Bytes), 0, vec4s() - register_vec4s);
        shared_bytes += std::max<std::int64_t>(shared_vec4s * invocations, 1) * kVec4Bytes;
    }

    [[nodiscard]] std::int64_t units() const { return shape.heads * head_units; }
    [[nodiscard]] std::int64_t values() const { return std::int64_t{shape.rows} * shape.units * products; }
    [[nodiscard]] std::int64_t cells() const {
        return std::max<std::int64_t>(1, std::int64_t{shape.rows} * shape.units / shape.lanes);
    }
    // Returns how many values an invocation exchanges with others of its subgroup in each step.
    [[nodiscard]] std::int64_t shuffles() const {
        std::int64_t count = 0;
        for (std::int64_t left = values(), apart = 1; apart < shape.lanes; apart *= 2)
            count += left = std::max(left / 2, products);
        return count;
    }
    [[nodiscard]] std::int64_t vec4s() const { return runs * shape.units * products; }
    [[nodiscard]] std::int64_t weights() const { return vec4s() * invocations * 4; }
    // Lanes share units of one head.
    [[nodiscard]] bool fits(const Spec& spec, const Profile& profile) const {
        return spec.heads() % shape.heads == 0 && (shape.heads == 1 || head_units % shape.units == 0) &&
               spec.D() * parts <= kMostParts && shape.lanes <= profile.subgroup_size && vec4s() <= kMostVec4s &&
               invocations <= std::min(profile.max_workgroup_invocations, profile.max_workgroup_size_x) &&
               shared_bytes <= profile.max_shared_memory;
    }
};

// Returns the numbers of heads that a workgroup may have: the divisors of all heads that it has invocations for.
std::vector<std::uint32_t> heads_of_workgroups(const Spec& spec, const Profile& profile) {
    std::vector<std::uint32_t> found;
    for (std::int64_t heads = 1; heads <= std::min<std::int64_t>(spec.heads(), profile.max_workgroup_invocations);
         ++heads)
        if (spec.heads() % heads == 0) found.push_back(static_cast<std::uint32_t>(heads));
    return found;
}

// Estimates the registers that an invocation needs besides those that hold weights.
std::int64_t other_registers(const Layout& layout, const Spec& spec) {
    return 34 + 13 * spec.G() + std::int64_t{4} * layout.shape.rows + layout.values() +
           (layout.cells() - 1) * (6 * spec.G() + 8);
}

// Returns how many vec4s of weights an invocation can keep in registers.
std::uint32_t register_vec4s(const Spec& spec, const Profile& profile, const SliceCosts& costs, SliceShape shape) {
    const Layout layout(shape, spec, profile);
    const std::int64_t each = std::min(kMostRegisters, registers_of(profile) / layout.invocations / 8 * 8);
    return static_cast<std::uint32_t>(std::clamp<std::int64_t>((each - other_registers(layout, spec)) / 4, 0,
                                                               static_cast<std::int64_t>(costs.most_held)));
}

// Estimates the microseconds of one step of all slices, which the busiest multiprocessor determines. Slices on the same
// multiprocessor share its throughput, but their latencies overlap.
double step_cost(const Layout& layout, const Spec& spec, const Profile& profile, const SliceCosts& costs) {
    const auto units = static_cast<double>(multiprocessors(profile, spec));
    const double slices = std::ceil(static_cast<double>(ceil_div(spec.N, layout.shape.rows) * spec.D() * layout.parts) /
                                    units);  // of the busiest
    const std::int64_t taken = (layout.register_vec4s * 4 + other_registers(layout, spec)) * layout.invocations;
    const auto at_once = static_cast<double>(std::max<std::int64_t>(
        1, std::min(registers_of(profile) / taken, std::int64_t{profile.max_shared_memory} / layout.shared_bytes)));

    const auto subgroups = static_cast<double>(layout.invocations) / 32;
    const auto products = static_cast<double>(layout.vec4s() * 4 * layout.shape.rows);  // of an invocation
    const auto levels = static_cast<double>(std::countr_zero(layout.shape.lanes));
    const auto other = static_cast<double>(layout.vec4s() - layout.register_vec4s - layout.shared_vec4s);
    const double activations = spec.gradients ? 1 : static_cast<double>(spec.G() + (spec.G() == 4 ? 1 : 0));
    const double chain = spec.gradients || spec.G() == 1 ? 1 : 2;
    const double cell =
        costs.activation_issues * activations + costs.gate_issues * static_cast<double>(spec.G()) + costs.cell_issues;
    const double waits =
        costs.wait + chain * costs.activation_wait + levels * costs.level_wait + products * costs.product_wait;
    const double reads =
        subgroups * (costs.shared_vec4 * static_cast<double>(layout.shape.rows * layout.runs + layout.shared_vec4s) +
                     costs.other_vec4 * other + static_cast<double>(layout.shuffles()));
    const double works = std::max(subgroups * 32 * products / costs.products_per_cycle, reads) +
                         subgroups * cell * static_cast<double>(layout.cells()) / costs.issues_per_cycle;
    return (std::ceil(slices / at_once) * waits + slices * works) / costs.cycles_per_us;
}

Layout layout_of(const PlanBuilder& builder) {
    return {with_parameters(kUsual, builder.parameters()), builder.spec(), builder.profile()};
}

// Returns how many steps a dispatch runs. Some drivers end a shader's loops after a total number of iterations. There,
// a dispatch runs only as many steps as stay below the limit even if the compiler unrolls nothing.
std::int64_t steps_of(const Layout& layout, const Profile& profile) {
    const std::int64_t steps = layout.shape.steps;
    if (profile.max_loop_iterations == 0) return steps;
    const std::int64_t iterations = 200 + layout.vec4s() * (2 + 2 * layout.shape.rows);
    return std::clamp<std::int64_t>(profile.max_loop_iterations / iterations, 1, steps);
}

}  // namespace

// AMD GPUs are left out. Compilers for them keep hundreds of these weights in memory instead of registers, and that of
// Mesa 22.3.6 crashes on some kernels.
bool SliceLoop::runs_on(const Profile& profile) const { return !is_amd(profile); }

Parameters SliceLoop::parameters(const Profile& profile, const Parameters& wanted) const {
    SliceShape usual = kUsual;
    usual.lanes = std::min(usual.lanes, profile.subgroup_size);
    return parameters_of(with_checked_parameters(usual, wanted, profile));
}

std::optional<CostEstimate> SliceLoop::estimate(const Spec& spec, const Profile& profile, const Costs& costs,
                                                const Parameters& wanted) const {
    if (!can_run_many_steps(spec) || spec.blends() || spec.masks_gates()) return std::nullopt;
    std::optional<CostEstimate> best;
    const auto consider = [&](const SliceShape& usual) {
        SliceShape shape = with_parameters(usual, wanted);
        if (shape.lanes > profile.subgroup_size) return;
        shape.register_vec4s = register_vec4s(spec, profile, costs.slices, shape);
        shape = with_parameters(shape, wanted);
        const Layout layout(shape, spec, profile);
        if (!layout.fits(spec, profile)) return;
        const double microseconds = static_cast<double>(spec.T) * step_cost(layout, spec, profile, costs.slices);
        if (!best || microseconds < best->microseconds) best = CostEstimate{microseconds, parameters_of(shape)};
    };
    // One unit or lane pays off only for small heads.
    const std::uint32_t least = spec.heads() > 1 ? 1 : 2;
    for (const std::uint32_t heads : heads_of_workgroups(spec, profile))
        for (std::uint32_t lanes = least; lanes <= 16; lanes *= 2)
            for (std::uint32_t units = least; units <= 16; units *= 2)
                for (const std::uint32_t rows : {1U, 2U, 4U}) consider({lanes, units, rows, 0, kUsual.steps, heads});
    if (!best) return best;
    best->ratio = (spec.gradients ? costs.lanes.backward : costs.lanes.forward).slices;
    best->microseconds += costs.slices.dispatch;
    // If the number of registers is unknown, weights that should be in registers might be spilled to memory.
    best->only_if_fixed = profile.registers == 0;
    return best;
}

// A dispatch reads the deltas of the step after its last one from the plan's buffers.
DeltaReads SliceLoop::delta_reads(const PlanBuilder& builder) const {
    const Spec& spec = builder.spec();
    const bool is_one_dispatch = steps_in_dispatch(spec, steps_of(layout_of(builder), builder.profile())) >= spec.T;
    return is_one_dispatch ? DeltaReads::none : DeltaReads::by_gate;
}

namespace {

// Adds the step that packs the weights, and returns their buffer.
std::size_t pack_weights(PlanBuilder& builder, std::size_t weight, const Layout& layout, const std::string& label) {
    const Spec& spec = builder.spec();
    const std::size_t out = builder.scratch("slice weights", spec.D() * layout.parts * layout.weights());
    abi::SlicePackPush pack{};
    pack.in_ = builder.at(weight, 0);
    pack.out_ = builder.at(out, 0);
    const std::int64_t units = spec.head_units();
    pack.in_direction = spec.G() * spec.H * units;
    pack.in_head = units * units;
    pack.in_k = spec.gradients ? units : 1;
    pack.in_k_slot = spec.gradients ? spec.H * units : 0;
    pack.in_unit = spec.gradients ? 1 : units;
    pack.in_slot = spec.gradients ? 0 : spec.H * units;
    pack.depth = u32(layout.depth);
    pack.H = u32(layout.units());
    pack.parts = u32(layout.parts);
    pack.head_units = u32(units);
    pack.runs = u32(layout.runs);
    pack.lanes = layout.shape.lanes;
    pack.units = layout.shape.units;
    pack.invocations = u32(layout.invocations);
    pack.products = u32(layout.products);
    pack.gate_order = gate_order(spec, 0, layout.products);
    Constants packing;
    packing.stored(builder.stored({weight}), spec.dtype);
    builder.dispatch(label + ": pack", builder.kernel("slice_pack", std::move(packing)),
                     builder.groups(ceil_div(layout.weights(), abi::kElementwiseGroup), spec.D() * layout.parts),
                     make_block(pack), true);
    return out;
}

}  // namespace

// Packs the weights, then adds the dispatches of all steps.
void SliceLoop::run(PlanBuilder& builder, const Inputs& inputs, StepBlock views) const {
    const Spec& spec = builder.spec();
    const std::string label = spec.gradients ? "steps back" : "steps";
    const Layout layout = layout_of(builder);
    Constants constants = cell_constants(spec, {0, keeps_training_state(spec), layout.shape.heads});
    constants.set(abi::kLocalSize, "workgroup", u32(layout.invocations))
        .set(abi::kSliceInvocations, {}, u32(layout.invocations))
        .set(abi::kSliceLanes, "slice_lanes", layout.shape.lanes)
        .set(abi::kSliceUnits, "slice_units", layout.shape.units)
        .set(abi::kSliceRows, "slice_rows", layout.shape.rows)
        .set(abi::kSliceHeads, spec.heads() > 1 ? "slice_heads" : "", layout.shape.heads)
        .set(abi::kSliceRuns, "slice_runs", u32(layout.runs))
        .set(abi::kRegisterVec4s, "register_vec4s", u32(layout.register_vec4s))
        .set(abi::kSharedVec4s, "shared_vec4s", u32(layout.shared_vec4s))
        .flag(abi::kToInitial, "to_initial", spec.passes_to_initial());

    views.divide(layout.shape.heads);
    if (spec.recurs()) {
        const std::size_t weights = pack_weights(builder, inputs[Argument::recurrent_weight], layout, label);
        views.weights(weights, 1, layout.weights(), layout.depth);
    }
    constants.stored(views.stored(), spec.dtype);
    const std::int64_t steps = steps_in_dispatch(spec, steps_of(layout, builder.profile()));
    const std::size_t kernel =
        builder.cell_kernel(spec.gradients ? "slices_backward" : "slices_forward", std::move(constants));
    Loop loop = loop_over(spec, steps);
    loop.body.push_back(step_dispatch(builder, label, kernel,
                                      builder.groups(ceil_div(spec.N, layout.shape.rows), spec.D() * layout.parts),
                                      views, u32(steps)));
    builder.add(std::move(loop), steps);
}

}  // namespace vkrnn
