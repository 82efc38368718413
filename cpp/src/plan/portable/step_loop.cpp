#include "step_loop.h"

#include <algorithm>
#include <bit>

#include "plan/tuning_parameters.h"
#include "step_kernels.h"

namespace vkrnn {
namespace {

// Rough rates of a data-center GPU.
constexpr double kMicrosecondsPerDispatch = 4;  // of a small dispatch, with the barrier before it
constexpr double kFlopsPerMicrosecond = 1e7;
constexpr double kWeightBytesPerMicrosecond = 4e6;

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

StepShape shape_of(const PlanBuilder& builder) { return with_sizes(usual_shape(builder.profile()), builder.sizes()); }

// Returns the batch rows of an invocation: the tuning parameter, or the batch size rounded up to a power of two if that
// is less.
std::uint32_t rows_of(const PlanBuilder& builder) {
    const std::uint32_t rows = shape_of(builder).rows;
    const auto batch = static_cast<std::uint32_t>(std::min<std::int64_t>(builder.spec().N, rows));
    return std::min(rows, std::bit_ceil(batch));
}

std::size_t loop_kernel(PlanBuilder& builder, const std::string& driver, const StepOptions& options) {
    const Spec& spec = builder.spec();
    std::vector<std::uint32_t> constants = step_constants(spec, options, abi::kStepConstants);
    const StepShape shape = shape_of(builder);
    constants[abi::kLocalSize] = shape.workgroup;
    constants[abi::kLanes] = shape.lanes;
    constants[abi::kRows] = rows_of(builder);
    constants[abi::kVectorLoads] = spec.H % 4 == 0;
    return step_kernel(builder, driver, std::move(constants));
}

// Returns the workgroups of one step, over all units, batch rows and directions.
std::array<std::uint32_t, 3> step_groups(const PlanBuilder& builder) {
    const Spec& spec = builder.spec();
    const StepShape shape = shape_of(builder);
    const std::int64_t unit_blocks = ceil_div(spec.H, shape.workgroup / shape.lanes);
    return builder.groups(unit_blocks * ceil_div(spec.N, rows_of(builder)), spec.D());
}

void transpose(PlanBuilder& builder, const std::string& label, std::size_t in, std::size_t out, std::int64_t rows,
               std::int64_t columns, std::int64_t batches) {
    abi::TransposePush push{};
    push.in_ = builder.at(in, 0);
    push.out_ = builder.at(out, 0);
    push.rows = u32(rows);
    push.columns = u32(columns);
    builder.dispatch(label, builder.kernel("transpose", {}),
                     builder.groups(ceil_div(rows * columns, abi::kElementwiseGroup), batches),
                     make_block(push, abi::kTransposePlaces), true);
}

}  // namespace

Sizes StepLoop::sizes(const Profile& profile, const Sizes& wanted) const {
    return sizes_of(with_checked_sizes(usual_shape(profile), wanted, profile));
}

std::vector<Sizes> StepLoop::variants(const Profile& profile) const {
    std::vector<Sizes> found;
    for (const std::uint32_t lanes : {profile.subgroup_size, profile.subgroup_size / 4})
        for (const std::uint32_t rows : {1U, 4U, 8U})
            if (lanes > 1 && rows <= abi::kMaxRows)
                found.push_back(sizes_of(StepShape{lanes, rows, usual_shape(profile).workgroup}));
    return found;
}

std::optional<Offer> StepLoop::offer(const Spec& spec, const Profile& profile, const Sizes& wanted) const {
    const auto dispatches = static_cast<double>(forward_phases(spec).size());
    const double step = dispatches * kMicrosecondsPerDispatch + step_flops(spec) / kFlopsPerMicrosecond +
                        recurrent_bytes(spec) / kWeightBytesPerMicrosecond;
    StepShape shape = usual_shape(profile);
    // In float64, sums of more rows need more registers than some compilers for these GPUs give an invocation.
    if (is_amd(profile) && spec.dtype == Dtype::float64) shape.rows = 2;
    return Offer{static_cast<double>(spec.T) * step, sizes_of(with_sizes(shape, wanted))};
}

void StepLoop::forward(PlanBuilder& builder, const Inputs& inputs, StepBlock views) const {
    const Spec& spec = builder.spec();
    views.weights(inputs[Argument::recurrent_weight], spec.G() * spec.H, spec.H, spec.H);
    const std::size_t params = builder.constant("parameters", views.block());
    Loop loop{spec.T, 0, 1, {}};
    for (const Phase& phase : forward_phases(spec)) {
        const std::size_t kernel = loop_kernel(builder, "forward", {phase.number, spec.descriptor.has(Flag::training)});
        loop.body.push_back(step_dispatch(phase.label, kernel, step_groups(builder), params));
    }
    builder.add(std::move(loop));
}

std::size_t StepLoop::backward_weight(PlanBuilder& builder) const {
    const Spec& spec = builder.spec();
    return builder.scratch("transposed weight", spec.D() * spec.G() * spec.H * spec.H);
}

void StepLoop::recompute(PlanBuilder& builder, const BackwardPass& pass) const {
    const Spec& spec = builder.spec();
    add_recompute(builder, pass);
    transpose(builder, "transpose", pass.inputs[Argument::recurrent_weight], pass.weight, spec.G() * spec.H, spec.H,
              spec.D());
}

void StepLoop::backward(PlanBuilder& builder, const BackwardPass& pass) const {
    const Spec& spec = builder.spec();
    const std::int64_t H = spec.H, G = spec.G();
    Loop loop{spec.T, static_cast<std::int32_t>(spec.T - 1), -1, {}};
    for (const Phase& phase : backward_phases(spec)) {
        StepBlock views = pass.views;
        views.skip_slots(abi::kRecurrentDelta, phase.first_slot);
        views.weights(pass.weight, H, G * H, phase.slots * H, phase.first_slot * H);
        const std::size_t params = builder.constant("parameters", views.block());
        const std::size_t kernel = loop_kernel(builder, "backward", {phase.number, false});
        loop.body.push_back(step_dispatch(phase.label, kernel, step_groups(builder), params));
    }
    Dispatch initial = at_step(loop.body.front(), "initial state", -1);
    builder.add(std::move(loop));
    if (spec.has(Argument::init_state)) builder.add(std::move(initial));
}

}  // namespace vkrnn
