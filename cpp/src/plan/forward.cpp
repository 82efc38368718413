// Makes forward plans, which compute x W^T for all time steps at once, unless the loop does so, and then run the steps
// one after the other.
#include "forward.h"

#include "cell_tensors.h"
#include "head_products.h"

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
    const bool projects = spec.has(Argument::input_weight) && !chosen.loop.projects();
    Product project;
    if (projects) {
        projected = builder.scratch("projected", spec.rows() * D * G * H);
        project = project_product(spec, {inputs[Argument::source], inputs[Argument::input_weight], projected});
        if (spec.piece_steps == 0) builder.beside_start_of_loop([&] { builder.product("project", project); });
    }
    views.sequence(abi::kProjected, projected, G, Order::source);
    inputs.set(views);
    const std::size_t output = builder.result(Output::output);
    views.sequence(abi::kHidden, output, 1, Order::output);
    if (builder.is_16bit(output))
        views.regions(abi::kCarryHidden, builder.scratch("carried state", 2 * N * D * H), 2, N * H, H, 0, 1);
    // The loop may clear the cell states of rows that have ended, so that the last ones must be copied from a sequence.
    const bool has_lengths = spec.has(Argument::lengths);
    const bool produces_cells = training || descriptor.has(Flag::produce_cell);
    const bool keeps_cells = C > 0 && (produces_cells || (spec.last_states && has_lengths));
    const bool joins = has_cell_tensors(spec);
    std::size_t cells = PlanBuilder::kZeros;
    std::vector<std::size_t> cell_outputs, last_tensors;
    if (keeps_cells) {
        if (produces_cells)
            for (const StateTensors& state : spec.cell_tensors())
                cell_outputs.push_back(builder.result(state.sequence));
        cells = produces_cells && !joins ? cell_outputs.front() : builder.scratch_sequence("cells", D * C * H, false);
        views.sequence(abi::kCell, cells, C, Order::output);
        if (builder.is_16bit(cells)) views.state(abi::kCarryCell, builder.scratch("carried cell", N * D * C * H), C);
    }
    if (training) {
        const std::size_t training_state = builder.result(Output::z_state);
        views.sequence(abi::kTrainingState, training_state, G, Order::output);
        if (phases && builder.is_16bit(training_state))
            views.state(abi::kCarryGates, builder.scratch("carried gates", N * D * G * H), G);
    } else if (phases) {
        views.state(abi::kTrainingState, builder.scratch("gates", N * D * G * H), G);
    }
    LastRows last_hidden{output, 0, H, inputs[Argument::lengths], inputs[Argument::init_state]};
    LastRows last_cells{cells, 0, C * H, inputs[Argument::lengths], inputs.initial_cells()};
    if (spec.last_states) last_hidden.out = builder.result(Output::last_state);
    if (joins && spec.last_states) {
        for (const StateTensors& state : spec.cell_tensors()) last_tensors.push_back(builder.result(state.last));
        last_cells.out = builder.scratch("last cells", N * D * C * H);
    } else if (C > 0 && spec.last_states)
        last_cells.out = keeps_cells ? builder.result(Output::last_cell) : builder.read_result(Output::last_cell);
    if (C > 0 && !keeps_cells)
        views.state(abi::kCell, spec.last_states ? last_cells.out : builder.scratch("cell", N * D * C * H), C);
    if (phases) views.state(abi::kScaledOperand, builder.scratch("scaled state", N * D * H));
    builder.count_flops(loop_flops(spec));
    chosen.loop.run(builder, inputs, views);
    if (projects && spec.piece_steps != 0)
        builder.add_to_pieces(PlanBuilder::Place::before,
                              [&](const TimeRows& rows) { builder.product("project", part_of(project, rows, N)); });
    if (spec.last_states) builder.last_rows("last state", last_hidden);
    if (spec.last_states && keeps_cells) builder.last_rows("last cell", last_cells, true);
    if (joins && produces_cells) split_cells(builder, "split cells", cells, cell_outputs, spec.rows());
    if (joins && spec.last_states) split_cells(builder, "split last cells", last_cells.out, last_tensors, N);
    return builder.finish();
}

}  // namespace vkrnn
