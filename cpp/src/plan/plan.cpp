// Forward plans: x W^T for all steps at once, then one step after the other.
#include "vkrnn/plan.h"

#include "gradient.h"
#include "inputs.h"
#include "native/native_plan.h"
#include "vkrnn/error.h"

namespace vkrnn {

namespace {

Plan make_forward_plan(const Spec& spec, const Profile& profile, const Flavour& flavour) {
    PlanBuilder builder(spec, profile, flavour);
    const Inputs inputs(builder);
    const Cell& cell = spec.cell();
    const Descriptor& descriptor = spec.descriptor;
    const std::int64_t T = spec.T, N = spec.N, H = spec.H, D = spec.D(), G = spec.G();
    const bool training = descriptor.has(Flag::training);
    const bool phases = two_phases(spec);

    StepBlock first(spec);
    std::size_t projected = inputs[Argument::source];
    if (spec.has(Argument::input_weight) && !builder.native()) {
        projected = builder.scratch("projected", T * N * D * G * H);
        Product project{T * N, D * G * H, spec.I, 1, {}, {}, {}};
        project.a = {inputs[Argument::source], 0, spec.I, 0, false};
        project.b = {inputs[Argument::input_weight], 0, spec.I, 0, false};
        project.c = {projected, 0, D * G * H, 0, false};
        builder.product("project", project);
    }
    first.sequence(abi::kProjected, projected, G, Order::source);
    inputs.set(first);
    first.sequence(abi::kHidden, builder.result("output", T * N * D * H), 1, Order::output);
    if (cell.states > 1) {
        if (training || descriptor.has(Flag::produce_cell))
            first.sequence(abi::kCell, builder.result("cell_output", T * N * D * H), 1, Order::output);
        else
            first.state(abi::kCell, builder.scratch("cell", N * D * H));
    }
    if (training)
        first.sequence(abi::kSaved, builder.result("z_state", T * N * D * G * H), G, Order::output);
    else if (phases)
        first.state(abi::kSaved, builder.scratch("gates", N * D * G * H), G);
    if (phases) first.state(abi::kOperand, builder.scratch("reset state", N * D * H));
    builder.count_flops(static_cast<double>(T) * step_flops(spec));
    if (builder.native()) {
        native_forward_loop(builder, inputs, first, training);
        return builder.finish();
    }

    first.weights(inputs[Argument::recurrent_weight], G * H, H, H);
    const std::size_t params = builder.constant("parameters", first.block());
    Loop loop{T, 0, 1, {}};
    const auto add_step = [&](const std::string& label, std::uint32_t phase) {
        const std::size_t kernel = step_kernel(builder, "forward", {phase, training});
        loop.body.push_back(step_dispatch(builder, label, kernel, params, 0));
    };
    if (phases) {
        add_step("step: gates", 1);
        add_step("step: candidate", 2);
    } else {
        add_step("step", 0);
    }
    builder.add(std::move(loop));
    return builder.finish();
}

}  // namespace

Plan make_plan(const Spec& spec, const Profile& profile, const Flavour& flavour) {
    if (spec.dtype == Dtype::float64 && !profile.float64)
        throw NotImplementedError(message_prefix(spec.cell(), spec.gradients, {}) +
                                  " float64 needs the device feature " + "shaderFloat64, which " + profile.name +
                                  " does not have");
    return spec.gradients ? make_gradient_plan(spec, profile, flavour) : make_forward_plan(spec, profile, flavour);
}

std::uint64_t Plan::bytes() const {
    std::uint64_t sum = 0;
    for (const PlanBuffer& buffer : buffers) sum += buffer.bytes;
    return sum;
}

std::int64_t Plan::dispatches() const {
    std::int64_t count = 0;
    for (const Step& step : steps) {
        if (std::holds_alternative<Dispatch>(step)) ++count;
        if (const Loop* loop = std::get_if<Loop>(&step))
            count += loop->count * static_cast<std::int64_t>(loop->body.size());
    }
    return count;
}

}  // namespace vkrnn
