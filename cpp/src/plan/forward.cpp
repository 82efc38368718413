// Makes forward plans, which compute x W^T for all time steps at once and then run the steps one after the other.
#include "forward.h"

namespace vkrnn {

Plan make_forward_plan(const Spec& spec, const Profile& profile, const Chosen& chosen) {
    PlanBuilder builder(spec, profile, chosen);
    const Inputs inputs(builder);
    const Descriptor& descriptor = spec.descriptor;
    const std::int64_t N = spec.N, H = spec.H, D = spec.D(), G = spec.G(), C = spec.C();
    const bool training = descriptor.has(Flag::training);
    const bool phases = spec.two_phases();

    StepBlock views(builder);
    std::size_t projected = inputs[Argument::source];
    if (spec.has(Argument::input_weight) && !chosen.loop.projects()) {
        projected = builder.scratch("projected", spec.rows() * D * G * H);
        Product project{spec.rows(), D * G * H, spec.I, 1, {}, {}, {}};
        project.a = {inputs[Argument::source], 0, spec.I, 0, false, true};
        project.b = {inputs[Argument::input_weight], 0, spec.I, 0, false};
        project.c = {projected, 0, D * G * H, 0, false};
        builder.product("project", project);
    }
    views.sequence(abi::kProjected, projected, G, Order::source);
    inputs.set(views);
    const std::size_t output = builder.result(Output::output);
    views.sequence(abi::kHidden, output, 1, Order::output);
    if (builder.is_16bit(output))
        views.regions(abi::kCarryHidden, builder.scratch("carried state", 2 * N * D * H), 2, N * H, H, 0, 1);
    if (C > 0) {
        if (training || descriptor.has(Flag::produce_cell)) {
            const std::size_t cells = builder.result(Output::cell_output);
            views.sequence(abi::kCell, cells, C, Order::output);
            if (builder.is_16bit(cells))
                views.state(abi::kCarryCell, builder.scratch("carried cell", N * D * C * H), C);
        } else {
            views.state(abi::kCell, builder.scratch("cell", N * D * C * H), C);
        }
    }
    if (training) {
        const std::size_t training_state = builder.result(Output::z_state);
        views.sequence(abi::kTrainingState, training_state, G, Order::output);
        if (phases && builder.is_16bit(training_state))
            views.state(abi::kCarryGates, builder.scratch("carried gates", N * D * G * H), G);
    } else if (phases) {
        views.state(abi::kTrainingState, builder.scratch("gates", N * D * G * H), G);
    }
    if (phases) views.state(abi::kScaledOperand, builder.scratch("scaled state", N * D * H));
    builder.count_flops(loop_flops(spec));
    chosen.loop.run(builder, inputs, views);
    return builder.finish();
}

}  // namespace vkrnn
