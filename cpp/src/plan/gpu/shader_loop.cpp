#include "shader_loop.h"

#include <algorithm>
#include <cstring>

namespace vkrnn {
namespace {

constexpr std::int64_t kMostStepElements = std::int64_t{1} << 28;
constexpr std::uint32_t kRecomputeGroup = 128;  // invocations of a workgroup; every device supports it

}  // namespace

void ShaderLoop::recompute(PlanBuilder& builder, const Inputs& /*inputs*/, const StepBlock& views) const {
    const Spec& spec = builder.spec();
    if (!recomputes(spec)) return;
    Constants constants = cell_constants(spec, {0, weighed_cells(spec)});
    constants.set(abi::kLocalSize, "workgroup", kRecomputeGroup).stored(views.stored(), spec.dtype);
    builder.dispatch(
        "recompute", builder.cell_kernel("recompute", std::move(constants)),
        builder.groups(ceil_div(spec.T * spec.N, abi::kRecomputeRows) * ceil_div(spec.H, kRecomputeGroup), spec.D()),
        step_push(builder, views));
}

void ShaderLoop::reset_gradients(PlanBuilder& builder, const StepBlock& views, std::uint32_t wanted) const {
    const Spec& spec = builder.spec();
    Constants constants = cell_constants(spec, {0, wanted});
    constants.set(abi::kLocalSize, "workgroup", kRecomputeGroup).stored(views.stored(), spec.dtype);
    builder.dispatch("gradients of resets", builder.cell_kernel("reset_gradients", std::move(constants)),
                     builder.groups(spec.N * ceil_div(spec.H, kRecomputeGroup), spec.D()), step_push(builder, views));
}

std::int64_t head_parts(const Spec& spec) { return spec.D() * spec.heads(); }
bool can_have_parts(const Spec& spec) { return head_parts(spec) <= kMostParts; }

std::vector<Phase> phases_of(const Spec& spec) {
    const std::string label = spec.gradients ? "step back" : "step";
    const std::int64_t candidate = spec.G() - 1;
    if (!spec.two_phases()) return {{0, label, 0, spec.G()}};
    return {{1, spec.gradients ? label : label + ": gates", 0, candidate}, {2, label + ": candidate", candidate, 1}};
}

Block step_push(PlanBuilder& builder, const StepBlock& views, std::uint32_t steps) {
    const std::size_t params = builder.constant("parameters", views.block());
    return make_block(abi::StepPush{reference_to(params, 0), 0, steps});
}

Dispatch step_dispatch(PlanBuilder& builder, const std::string& label, std::size_t kernel,
                       std::array<std::uint32_t, 3> groups, const StepBlock& views, std::uint32_t steps) {
    Dispatch made{label, kernel, groups, step_push(builder, views, steps)};
    made.counter = abi::kStepCounter;
    return made;
}

Dispatch at_step(Dispatch dispatch, std::int32_t step, std::string label) {
    dispatch.label = std::move(label);
    std::memcpy(dispatch.push.bytes.data() + abi::kStepCounter, &step, sizeof(step));
    return dispatch;
}

Loop loop_over(const Spec& spec, std::int64_t steps) {
    const auto first = static_cast<std::int32_t>(spec.gradients ? spec.T - 1 : 0);
    return {ceil_div(spec.T, steps), first, static_cast<std::int32_t>(spec.gradients ? -steps : steps), {}};
}

void add_loop_of_phases(PlanBuilder& builder, const std::function<Dispatch(const Phase&)>& dispatch_of) {
    const Spec& spec = builder.spec();
    Loop loop = loop_over(spec);
    for (const Phase& phase : phases_of(spec)) loop.body.push_back(dispatch_of(phase));
    Dispatch initial = loop.body.front();
    builder.add(std::move(loop), 1);
    if (!spec.passes_to_initial()) return;
    builder.add(at_step(std::move(initial), -1, "initial state"));
}

std::int64_t steps_in_dispatch(const Spec& spec, std::int64_t most) {
    if (spec.piece_steps == 0) return std::min(spec.T, most);
    std::int64_t steps = std::min(spec.piece_steps, most);
    while (spec.piece_steps % steps != 0) --steps;
    return steps;
}

bool can_run_many_steps(const Spec& spec) {
    return spec.dtype != Dtype::float64 && !spec.two_phases() &&
           spec.N * spec.D() * spec.G() * spec.H <= kMostStepElements;
}

}  // namespace vkrnn
