#include "step_loop.h"

#include <algorithm>
#include <bit>

#include "vkrnn/error.h"

namespace vkrnn {
namespace {

// Roughly, on a GPU of a data center.
constexpr double kMicrosecondsPerDispatch = 4;  // of a small step, with the barrier before it
constexpr double kFlopsPerMicrosecond = 8e6;

void require(bool holds, const std::string& size, const std::string& expected, std::uint32_t got) {
    if (!holds) throw ValueError("[Device] " + size + ": expected " + expected + ", got " + std::to_string(got));
}

// Batch rows an invocation takes: no more than there are, and a power of two.
std::uint32_t rows_of(const PlanBuilder& builder) {
    const std::uint32_t rows = builder.size("rows");
    const auto batch = static_cast<std::uint32_t>(std::min<std::int64_t>(builder.spec().N, rows));
    return std::min(rows, std::bit_ceil(batch));
}

std::size_t step_kernel(PlanBuilder& builder, const std::string& driver, const StepOptions& options) {
    const Spec& spec = builder.spec();
    std::vector<std::uint32_t> constants = cell_constants(spec, options);
    constants[abi::kLocalSize] = builder.size("workgroup");
    constants[abi::kLanes] = builder.size("lanes");
    constants[abi::kRows] = rows_of(builder);
    constants[abi::kVectorLoads] = spec.H % 4 == 0;
    return builder.kernel(std::string(spec.cell().shader) + "_" + driver, std::move(constants));
}

// One step over all units, batch rows and directions.
Dispatch step_dispatch(PlanBuilder& builder, const std::string& label, std::size_t kernel, std::size_t params,
                       std::int64_t step) {
    const Spec& spec = builder.spec();
    const std::int64_t unit_blocks = ceil_div(spec.H, builder.size("workgroup") / builder.size("lanes"));
    const std::int64_t row_blocks = ceil_div(spec.N, rows_of(builder));
    const abi::StepPush push{place(params, 0), static_cast<std::int32_t>(step), 0};
    Dispatch made{label, kernel, builder.groups(unit_blocks * row_blocks, spec.D()),
                  make_block(push, abi::kStepPushPlaces)};
    made.counter = abi::kStepCounter;
    return made;
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

// The parameters of a backward step on `slots` slots of the recurrent deltas and of the transposed weight, from `first`
// on.
std::size_t backward_parameters(PlanBuilder& builder, const BackwardPass& pass, const std::string& name,
                                std::int64_t first, std::int64_t slots) {
    const std::int64_t H = builder.spec().H, G = builder.spec().G();
    StepBlock views = pass.views;
    views.skip_slots(abi::kRecurrentDelta, first);
    views.weights(pass.weight, H, G * H, slots * H, first * H);
    return builder.constant(name, views.block());
}

// The parameters of the first phase, or of the only one. The first of two hands down the gates z and r, which stand in
// the first slots in either order.
std::size_t first_parameters(PlanBuilder& builder, const BackwardPass& pass) {
    const std::int64_t G = builder.spec().G();
    return backward_parameters(builder, pass, "parameters", 0, two_phases(builder.spec()) ? G - 1 : G);
}

}  // namespace

bool StepLoop::runs_on(const Profile& profile) const { return profile.driver != kNativeDriver; }

Sizes StepLoop::sizes(const Profile& profile, const Sizes& wanted) const {
    // On a CPU one invocation is one SIMD lane, and a subgroup is a whole workgroup's worth of work.
    const std::uint32_t subgroup = profile.subgroup_size;
    const bool cpu = profile.type == DeviceType::cpu;
    Sizes sizes{{"lanes", cpu ? 1 : std::min(32u, subgroup)},
                {"rows", cpu ? std::min(8u, subgroup) : 4},
                {"workgroup", cpu ? subgroup : std::max(128u, subgroup)}};
    for (auto& [name, size] : sizes)
        if (const auto found = wanted.find(name); found != wanted.end()) size = found->second;

    const std::uint32_t lanes = sizes["lanes"], rows = sizes["rows"], workgroup = sizes["workgroup"];
    require(std::has_single_bit(lanes) && lanes <= subgroup, "lanes",
            "a power of two up to the subgroup's " + std::to_string(subgroup), lanes);
    // With one lane, the subgroup loads a row of the operand per invocation.
    const std::uint32_t most = lanes == 1 ? subgroup : abi::kMaxRows;
    require(rows >= 1 && rows <= most, "rows", "1 to " + std::to_string(most), rows);
    const std::uint32_t largest = std::min(profile.max_workgroup_invocations, profile.max_workgroup_size_x);
    require(workgroup >= subgroup && workgroup % subgroup == 0 && workgroup <= largest, "workgroup",
            "a multiple of the subgroup's " + std::to_string(subgroup) + " up to " + std::to_string(largest),
            workgroup);
    return sizes;
}

std::optional<Offer> StepLoop::offer(const Spec& spec, const Profile& profile, const Sizes& wanted) const {
    const double dispatches = two_phases(spec) ? 2 : 1;
    const double step = dispatches * kMicrosecondsPerDispatch + step_flops(spec) / kFlopsPerMicrosecond;
    return Offer{static_cast<double>(spec.T) * step, sizes(profile, wanted)};
}

void StepLoop::forward(PlanBuilder& builder, const Inputs& inputs, StepBlock views) const {
    const Spec& spec = builder.spec();
    const bool training = spec.descriptor.has(Flag::training);
    views.weights(inputs[Argument::recurrent_weight], spec.G() * spec.H, spec.H, spec.H);
    const std::size_t params = builder.constant("parameters", views.block());
    Loop loop{spec.T, 0, 1, {}};
    const auto add_step = [&](const std::string& label, std::uint32_t phase) {
        const std::size_t kernel = step_kernel(builder, "forward", {phase, training});
        loop.body.push_back(step_dispatch(builder, label, kernel, params, 0));
    };
    if (two_phases(spec)) {
        add_step("step: gates", 1);
        add_step("step: candidate", 2);
    } else {
        add_step("step", 0);
    }
    builder.add(std::move(loop));
}

std::size_t StepLoop::backward_weight(PlanBuilder& builder) const {
    const Spec& spec = builder.spec();
    return builder.scratch("transposed weight", spec.D() * spec.G() * spec.H * spec.H);
}

void StepLoop::recompute(PlanBuilder& builder, const BackwardPass& pass) const {
    const Spec& spec = builder.spec();
    const std::size_t params = first_parameters(builder, pass);
    const std::size_t kernel = step_kernel(builder, "replay", {0, spec.has(Argument::peephole)});
    const std::int64_t blocks = spec.T * spec.N * ceil_div(spec.H, builder.size("workgroup"));
    const abi::StepPush push{place(params, 0), 0, 0};
    builder.dispatch("replay", kernel, builder.groups(blocks, spec.D()), make_block(push, abi::kStepPushPlaces));
    transpose(builder, "transpose", pass.inputs[Argument::recurrent_weight], pass.weight, spec.G() * spec.H, spec.H,
              spec.D());
}

void StepLoop::backward(PlanBuilder& builder, const BackwardPass& pass) const {
    const Spec& spec = builder.spec();
    const bool phases = two_phases(spec);
    const std::size_t params = first_parameters(builder, pass);
    Loop loop{spec.T, static_cast<std::int32_t>(spec.T - 1), -1, {}};
    const std::size_t kernel = step_kernel(builder, "backward", {phases ? 1u : 0u, false});
    loop.body.push_back(step_dispatch(builder, "step back", kernel, params, 0));
    if (phases) {
        const std::size_t reset_params = backward_parameters(builder, pass, "reset parameters", spec.G() - 1, 1);
        const std::size_t reset = step_kernel(builder, "backward", {2, false});
        loop.body.push_back(step_dispatch(builder, "step back: reset", reset, reset_params, 0));
    }
    builder.add(std::move(loop));
    if (spec.has(Argument::init_state)) builder.add(step_dispatch(builder, "initial state", kernel, params, -1));
}

}  // namespace vkrnn
