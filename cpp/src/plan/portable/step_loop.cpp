#include "step_loop.h"

#include <algorithm>
#include <bit>

#include "plan/cost_table.h"
#include "plan/gpu/gpu.h"
#include "portable/portable_abi.h"

namespace vkrnn {
namespace {

struct StepShape {
    std::uint32_t lanes;      // invocations that share one dot product of the recurrent product
    std::uint32_t rows;       // batch rows of an invocation
    std::uint32_t workgroup;  // invocations of a workgroup

    static Range lanes_range(const Profile& profile, const StepShape& /*shape*/) {
        return {.most = profile.subgroup_size, .power_of_two = true, .of_what = kSubgroup};
    }
    // With one lane, each invocation loads one row of the operand for the whole subgroup.
    static Range rows_range(const Profile& profile, const StepShape& shape) {
        return {.least = 1, .most = shape.lanes == 1 ? profile.subgroup_size : abi::kMaxRows};
    }
    static Range workgroup_range(const Profile& profile, const StepShape& /*shape*/) {
        return {.least = profile.subgroup_size,
                .most = std::min(profile.max_workgroup_invocations, profile.max_workgroup_size_x),
                .multiple_of = profile.subgroup_size,
                .of_what = kSubgroup};
    }
    static std::span<const TuningParameter<StepShape>> parameters() {
        static constexpr TuningParameter<StepShape> kAll[] = {{"lanes", &StepShape::lanes, lanes_range},
                                                              {"rows", &StepShape::rows, rows_range},
                                                              {"workgroup", &StepShape::workgroup, workgroup_range}};
        return kAll;
    }
};

// On a CPU, an invocation is one SIMD lane, so one subgroup is enough for a workgroup.
StepShape usual_shape(const Profile& profile) {
    const std::uint32_t subgroup = profile.subgroup_size;
    if (profile.type == DeviceType::cpu) return {1, std::min(8u, subgroup), subgroup};
    return {std::min(32u, subgroup), 4, std::max(128u, subgroup)};
}

StepShape shape_of(const PlanBuilder& builder) {
    return with_parameters(usual_shape(builder.profile()), builder.parameters());
}

// Returns the batch rows of an invocation: the tuning parameter, or the batch size rounded up to a power of two if that
// is less.
std::uint32_t rows_of(const PlanBuilder& builder) {
    const std::uint32_t rows = shape_of(builder).rows;
    const auto batch = static_cast<std::uint32_t>(std::min<std::int64_t>(builder.spec().N, rows));
    return std::min(rows, std::bit_ceil(batch));
}

std::size_t loop_kernel(PlanBuilder& builder, const Phase& phase, const StepBlock& views) {
    const Spec& spec = builder.spec();
    Constants constants = cell_constants(spec, {phase.number, keeps_training_state(spec)});
    const StepShape shape = shape_of(builder);
    constants.set(abi::kLocalSize, "workgroup", shape.workgroup)
        .set(abi::kLanes, "lanes", shape.lanes)
        .set(abi::kRows, "rows", rows_of(builder))
        .flag(abi::kVectorLoads, "vector_loads", spec.head_units() % 4 == 0)
        .stored(views.stored(), spec.dtype);
    return builder.cell_kernel(spec.gradients ? "backward" : "forward", std::move(constants));
}

// Returns the workgroups of one step, over all units, batch rows and directions.
std::array<std::uint32_t, 3> step_groups(const PlanBuilder& builder) {
    const Spec& spec = builder.spec();
    const StepShape shape = shape_of(builder);
    const std::int64_t unit_blocks = ceil_div(spec.H, shape.workgroup / shape.lanes);
    return builder.groups(unit_blocks * ceil_div(spec.N, rows_of(builder)), spec.D());
}

// The buffer with the recurrent weight as the backward loop reads it: [D, H / heads, G * H].
struct TransposedWeight {
    std::size_t buffer = kNoBuffer;
};

}  // namespace

Parameters StepLoop::parameters(const Profile& profile, const Parameters& wanted) const {
    return parameters_of(with_checked_parameters(usual_shape(profile), wanted, profile));
}

std::vector<Parameters> StepLoop::variants(const Profile& profile) const {
    std::vector<Parameters> found;
    for (const std::uint32_t lanes : {profile.subgroup_size, profile.subgroup_size / 4})
        for (const std::uint32_t rows : {1U, 4U, 8U})
            if (lanes > 1 && rows <= abi::kMaxRows)
                found.push_back(parameters_of(StepShape{lanes, rows, usual_shape(profile).workgroup}));
    return found;
}

std::optional<CostEstimate> StepLoop::estimate(const Spec& spec, const Profile& profile, const Costs& costs,
                                               const Parameters& wanted) const {
    const auto dispatches = static_cast<double>(phases_of(spec).size());
    const double step = dispatches * costs.steps.dispatch + step_flops(spec) / costs.steps.flops_per_us +
                        recurrent_bytes(spec) / costs.steps.weight_bytes_per_us;
    StepShape shape = usual_shape(profile);
    // In float64, sums of more rows need more registers than some compilers for these GPUs give an invocation.
    if (is_amd(profile) && spec.dtype == Dtype::float64) shape.rows = 2;
    if (spec.heads() > 1) {  // no more lanes than vec4s of a dot product
        const std::int64_t depth = spec.head_units() * (spec.gradients ? spec.G() : 1);
        shape.lanes = std::min(shape.lanes, std::bit_ceil(u32(ceil_div(depth, 4))));
    }
    return CostEstimate{static_cast<double>(spec.T) * step, parameters_of(with_parameters(shape, wanted))};
}

void StepLoop::recompute(PlanBuilder& builder, const Inputs& inputs, const StepBlock& views) const {
    ShaderLoop::recompute(builder, inputs, views);
    const Spec& spec = builder.spec();
    if (!spec.recurs()) return;
    const std::int64_t rows = spec.G() * spec.H;
    const std::size_t weight = inputs[Argument::recurrent_weight];
    const std::size_t out = builder.scratch_like(weight, "transposed weight", spec.D() * rows * spec.head_units());
    builder.notes<TransposedWeight>().buffer = out;
    abi::TransposePush push{};
    push.in_ = builder.at(weight, 0);
    push.out_ = builder.at(out, 0);
    push.rows = u32(rows);
    push.columns = u32(spec.head_units());
    Constants constants;
    constants.stored(builder.stored({weight, out}), spec.dtype);
    builder.dispatch("transpose", builder.kernel("transpose", std::move(constants)),
                     builder.groups(ceil_div(rows * spec.head_units(), abi::kElementwiseGroup), spec.D()),
                     make_block(push), true);
}

void StepLoop::run(PlanBuilder& builder, const Inputs& inputs, StepBlock views) const {
    const Spec& spec = builder.spec();
    const std::int64_t H = spec.H, G = spec.G(), units = spec.head_units();
    add_loop_of_phases(builder, [&](const Phase& phase) {
        StepBlock of_phase = views;
        // Without weights, the depth of the products is 0.
        if (spec.gradients) of_phase.skip_slots(abi::kRecurrentDelta, phase.first);
        if (spec.recurs() && spec.gradients) {
            of_phase.weights(builder.notes<TransposedWeight>().buffer, units, G * H, phase.count * units,
                             phase.first * H);
        } else if (spec.recurs()) {
            of_phase.weights(inputs[Argument::recurrent_weight], G * H, units, units);
        }
        return step_dispatch(builder, phase.label, loop_kernel(builder, phase, of_phase), step_groups(builder),
                             of_phase);
    });
}

}  // namespace vkrnn
