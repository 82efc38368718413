// The rows of the table of cells.
#include <algorithm>
#include <limits>
#include <utility>

#include "base/lazy.h"
#include "vkrnn/cells.h"

namespace vkrnn {
namespace {

using enum Argument;
using enum Activation;

constexpr bool kRequired = false;
constexpr bool kOptional = true;

Property flag(std::string_view name, Flag which) { return {name, which}; }

Property activation(std::string_view name, std::size_t slot, Activation documented_default) {
    return {name, ActivationProperty{slot, documented_default}};
}

// Adds the properties that every cell has: the clipping thresholds of the gates' sums and of gradients, the numbers of
// heads and, if the cell has activations to choose, the parameters of the hard sigmoid. Numbers must fit in float32.
void add_common_properties(std::vector<Property>& properties) {
    constexpr double kMost = std::numeric_limits<float>::max();
    const bool has_activations = std::ranges::any_of(
        properties, [](const Property& each) { return std::holds_alternative<ActivationProperty>(each.kind); });
    if (has_activations) {
        properties.push_back({"hard_sigmoid_alpha", NumberProperty{kHardSigmoidAlphaSlot, 0.2, -kMost, kMost}});
        properties.push_back({"hard_sigmoid_beta", NumberProperty{kHardSigmoidBetaSlot, 0.5, -kMost, kMost}});
    }
    properties.push_back({"clip", NumberProperty{kClipSlot, 0.0, 0.0, kMost}});
    constexpr double kOff = std::numeric_limits<double>::infinity();
    properties.push_back({"gradient_clip", NumberProperty{kGradientClipSlot, kOff, 0.0, kMost}});
    properties.push_back({"heads", CountProperty{kHeadsSlot}});
    properties.push_back({"input_heads", CountProperty{kInputHeadsSlot}});
}

Cell single_gate_rnn_cell() {
    return {
        .kind = CellKind::single_gate_rnn,
        .name = "single_gate_rnn",
        .gradients_name = "single_gate_rnn_gradients",
        .descriptor_name = "SingleGateRNNDescriptor",
        .shader = "single_gate_rnn",
        .gates = {"output"},
        .slots = {0},
        .other_slots = {0},
        .cell_states = 0,
        .vectors = std::nullopt,
        .candidate = std::nullopt,
        .bounds = std::vector<Bound>{{0, false}},
        .properties = {flag("reverse", Flag::reverse), flag("bidirectional", Flag::bidirectional),
                       flag("training", Flag::training), activation("activation", 0, relu)},
        .forward = {{source, kRequired},
                    {recurrent_weight, kOptional},
                    {input_weight, kOptional},
                    {bias, kOptional},
                    {init_state, kOptional},
                    {mask, kOptional},
                    {lengths, kOptional}},
        .gradients = {{source, kRequired},
                      {recurrent_weight, kOptional},
                      {source_gradient, kOptional},
                      {z_state, kRequired},
                      {state_gradient, kOptional},
                      {input_weight, kOptional},
                      {bias, kOptional},
                      {init_state, kOptional},
                      {mask, kOptional},
                      {lengths, kOptional}},
        .gradient_order = {source, recurrent_weight, input_weight, bias, init_state},
    };
}

Cell lstm_cell() {
    return {
        .kind = CellKind::lstm,
        .name = "lstm",
        .gradients_name = "lstm_gradients",
        .descriptor_name = "LSTMDescriptor",
        .shader = "lstm",
        .gates = {"input", "forget", "cell", "output"},
        .slots = {0, 1, 2, 3},
        .other_slots = {0, 2, 1, 3},
        .cell_states = 1,
        .vectors = Vectors{.argument = peephole, .weigh_cell = true, .last_weighs_new_cell = cell_option(0)},
        .candidate = std::nullopt,
        .bounds = std::vector<Bound>{{3, false}, {4, false}},
        .properties = {flag("reverse", Flag::reverse), flag("bidirectional", Flag::bidirectional),
                       flag("training", Flag::training), flag("produce_cell", Flag::produce_cell),
                       flag("forget_gate_last", Flag::other_gate_order),
                       flag("output_peephole_new_cell", cell_option(0)),
                       activation("input_gate_activation", 0, sigmoid),
                       activation("forget_gate_activation", 1, sigmoid), activation("cell_gate_activation", 2, tanh),
                       activation("output_gate_activation", 3, sigmoid), activation("activation", 4, tanh)},
        .forward = {{source, kRequired},
                    {recurrent_weight, kOptional},
                    {input_weight, kOptional},
                    {bias, kOptional},
                    {init_state, kOptional},
                    {init_cell, kOptional},
                    {mask, kOptional},
                    {peephole, kOptional},
                    {lengths, kOptional}},
        .gradients = {{source, kRequired},
                      {recurrent_weight, kOptional},
                      {source_gradient, kOptional},
                      {z_state, kRequired},
                      {cell_output_fwd, kRequired},
                      {state_gradient, kOptional},
                      {cell_gradient, kOptional},
                      {input_weight, kOptional},
                      {bias, kOptional},
                      {init_state, kOptional},
                      {init_cell, kOptional},
                      {mask, kOptional},
                      {peephole, kOptional},
                      {lengths, kOptional}},
        .gradient_order = {source, recurrent_weight, input_weight, bias, peephole, init_state, init_cell},
    };
}

Cell gru_cell() {
    return {
        .kind = CellKind::gru,
        .name = "gru",
        .gradients_name = "gru_gradients",
        .descriptor_name = "GRUDescriptor",
        .shader = "gru",
        .gates = {"update", "reset", "output"},
        .slots = {0, 1, 2},
        .other_slots = {1, 0, 2},
        .cell_states = 0,
        .vectors = Vectors{.argument = secondary_bias, .weigh_cell = false},
        .candidate = Candidate{.scales_product = Flag::reset_after, .scale_activation_slot = 1},
        .bounds = std::vector<Bound>{{0, true}, {2, false}},
        .properties = {flag("reverse", Flag::reverse), flag("bidirectional", Flag::bidirectional),
                       flag("training", Flag::training), flag("reset_gate_first", Flag::other_gate_order),
                       flag("reset_after", Flag::reset_after), flag("flip_z", cell_option(0)),
                       activation("update_gate_activation", 0, sigmoid),
                       activation("reset_gate_activation", 1, sigmoid), activation("output_gate_activation", 2, tanh)},
        .forward = {{source, kRequired},
                    {recurrent_weight, kOptional},
                    {input_weight, kOptional},
                    {bias, kOptional},
                    {init_state, kOptional},
                    {mask, kOptional},
                    {secondary_bias, kOptional},
                    {lengths, kOptional}},
        .gradients = {{source, kRequired},
                      {recurrent_weight, kOptional},
                      {source_gradient, kOptional},
                      {z_state, kRequired},
                      {output_fwd, kRequired},
                      {state_gradient, kOptional},
                      {input_weight, kOptional},
                      {bias, kOptional},
                      {init_state, kOptional},
                      {mask, kOptional},
                      {secondary_bias, kOptional},
                      {lengths, kOptional}},
        .gradient_order = {source, recurrent_weight, input_weight, bias, init_state, secondary_bias},
    };
}

Cell slstm_cell() {
    return {
        .kind = CellKind::slstm,
        .name = "slstm",
        .gradients_name = "slstm_gradients",
        .descriptor_name = "SLSTMDescriptor",
        .shader = "slstm",
        .gates = {"input", "forget", "cell", "output"},
        .slots = {0, 1, 2, 3},
        .other_slots = {0, 1, 2, 3},
        .cell_states = 3,
        .vectors = std::nullopt,
        .candidate = std::nullopt,
        .bounds = std::vector<Bound>{},  // |c| <= n, because c and n sum tanh(z) and 1 with the same weights
        .bounds_need_zero_cells = true,
        .properties = {flag("reverse", Flag::reverse),
                       flag("bidirectional", Flag::bidirectional),
                       flag("training", Flag::training),
                       flag("produce_cell", Flag::produce_cell),
                       {"forget_gate", ChoiceProperty{cell_option(0), {"sigmoid", "exponential"}}}},
        .forward = {{source, kRequired},
                    {recurrent_weight, kOptional},
                    {input_weight, kOptional},
                    {bias, kOptional},
                    {init_state, kOptional},
                    {init_cell, kOptional},
                    {init_normalizer, kOptional},
                    {init_stabilizer, kOptional},
                    {mask, kOptional},
                    {lengths, kOptional}},
        .gradients = {{source, kRequired},
                      {recurrent_weight, kOptional},
                      {source_gradient, kOptional},
                      {z_state, kRequired},
                      {cell_output_fwd, kRequired},
                      {normalizer_output_fwd, kRequired},
                      {stabilizer_output_fwd, kRequired},
                      {state_gradient, kOptional},
                      {cell_gradient, kOptional},
                      {normalizer_gradient, kOptional},
                      {stabilizer_gradient, kOptional},
                      {input_weight, kOptional},
                      {bias, kOptional},
                      {init_state, kOptional},
                      {init_cell, kOptional},
                      {init_normalizer, kOptional},
                      {init_stabilizer, kOptional},
                      {mask, kOptional},
                      {lengths, kOptional}},
        .gradient_order = {source, recurrent_weight, input_weight, bias, init_state, init_cell, init_normalizer,
                           init_stabilizer},
    };
}

}  // namespace

std::span<const Cell> cells() {
    static constinit Lazy<std::array<Cell, 4>> table;
    return table.get([] {
        std::array<Cell, 4> all{with_resets(single_gate_rnn_cell()), with_resets(lstm_cell()), with_resets(gru_cell()),
                                with_resets(slstm_cell())};
        for (Cell& cell : all) {
            cell = with_blends(std::move(cell));
            add_common_properties(cell.properties);
        }
        return all;
    });
}

}  // namespace vkrnn
