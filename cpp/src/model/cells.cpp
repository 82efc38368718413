#include "vkrnn/cells.h"

#include <algorithm>
#include <string>

namespace vkrnn {
namespace {

using enum Argument;
using enum Activation;

constexpr bool kRequired = false;
constexpr bool kOptional = true;

constexpr std::array<std::string_view, kArguments> kArgumentNames{
    "source",         "recurrent_weight", "source_gradient", "z_state", "cell_output_fwd", "output_fwd",
    "state_gradient", "cell_gradient",    "input_weight",    "bias",    "init_state",      "init_cell",
    "mask",           "peephole",         "secondary_bias",  "lengths",
};
constexpr std::array<std::string_view, 3> kOutputNames{"output", "cell_output", "z_state"};
constexpr std::array<std::string_view, 5> kActivationNames{"none", "relu", "tanh", "sigmoid", "hard_sigmoid"};

Property flag(std::string_view name, Flag which) { return {.name = name, .flag = which}; }

Property activation(std::string_view name, std::size_t slot, Activation documented_default) {
    return {.name = name, .flag = std::nullopt, .activation_slot = slot, .default_activation = documented_default};
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
        .vector_count = 0,
        .candidate = std::nullopt,
        .bounds = std::vector<Bound>{{0, false}},
        .properties = {flag("reverse", Flag::reverse), flag("bidirectional", Flag::bidirectional),
                       flag("training", Flag::training), activation("activation", 0, relu)},
        .forward = {{source, kRequired},
                    {recurrent_weight, kRequired},
                    {input_weight, kOptional},
                    {bias, kOptional},
                    {init_state, kOptional},
                    {mask, kOptional},
                    {lengths, kOptional}},
        .gradients = {{source, kRequired},
                      {recurrent_weight, kRequired},
                      {source_gradient, kRequired},
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
        .vectors = peephole,
        .vector_count = 4,
        .candidate = std::nullopt,
        .bounds = std::vector<Bound>{{3, false}, {4, false}},
        .properties = {flag("reverse", Flag::reverse), flag("bidirectional", Flag::bidirectional),
                       flag("training", Flag::training), flag("produce_cell", Flag::produce_cell),
                       flag("forget_gate_last", Flag::other_gate_order),
                       activation("input_gate_activation", 0, sigmoid),
                       activation("forget_gate_activation", 1, sigmoid), activation("cell_gate_activation", 2, tanh),
                       activation("output_gate_activation", 3, sigmoid), activation("activation", 4, tanh)},
        .forward = {{source, kRequired},
                    {recurrent_weight, kRequired},
                    {input_weight, kOptional},
                    {bias, kOptional},
                    {init_state, kOptional},
                    {init_cell, kOptional},
                    {mask, kOptional},
                    {peephole, kOptional},
                    {lengths, kOptional}},
        .gradients = {{source, kRequired},
                      {recurrent_weight, kRequired},
                      {source_gradient, kRequired},
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
        .vectors = secondary_bias,
        .vector_count = 1,
        .candidate = Candidate{.scales_product = Flag::reset_after},
        .bounds = std::vector<Bound>{{0, true}, {2, false}},
        .properties = {flag("reverse", Flag::reverse), flag("bidirectional", Flag::bidirectional),
                       flag("training", Flag::training), flag("reset_gate_first", Flag::other_gate_order),
                       flag("reset_after", Flag::reset_after), flag("flip_z", Flag::flip_z),
                       activation("update_gate_activation", 0, sigmoid),
                       activation("reset_gate_activation", 1, sigmoid), activation("output_gate_activation", 2, tanh)},
        .forward = {{source, kRequired},
                    {recurrent_weight, kRequired},
                    {input_weight, kOptional},
                    {bias, kOptional},
                    {init_state, kOptional},
                    {mask, kOptional},
                    {secondary_bias, kOptional},
                    {lengths, kOptional}},
        .gradients = {{source, kRequired},
                      {recurrent_weight, kRequired},
                      {source_gradient, kRequired},
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

}  // namespace

std::string_view name_of(Argument argument) { return kArgumentNames.at(static_cast<std::size_t>(argument)); }
std::string_view name_of(Output output) { return kOutputNames.at(static_cast<std::size_t>(output)); }
std::string_view name_of(Activation activation) { return kActivationNames.at(static_cast<std::size_t>(activation)); }

const ShapeRule& shape_rule(Argument argument, bool has_input_weight) {
    using enum Axis;
    // By Argument; the source without an input weight, whose channels are the gates, stands last.
    static const std::array<ShapeRule, kArguments + 1> kRules{{
        {{{T, N, I}}, {{T, N, I}}},                              // source
        {{{GH, H}}, {{D, GH, H}}},                               // recurrent_weight
        {{{T, N, DH}}, {{T, N, DH}}},                            // source_gradient
        {{{T, N, DGH}}, {{T, N, DGH}}},                          // z_state
        {{{T, N, DCH}}, {{T, N, DCH}}},                          // cell_output_fwd
        {{{T, N, DH}}, {{T, N, DH}}},                            // output_fwd
        {{{N, DH}, {one, N, DH}}, {{N, DH}, {one, N, DH}}},      // state_gradient
        {{{N, DCH}, {one, N, DCH}}, {{N, DCH}, {one, N, DCH}}},  // cell_gradient
        {{{DGH, I}}, {{DGH, I}}},                                // input_weight
        {{{DGH}}, {{DGH}}},                                      // bias
        {{{N, DH}, {one, N, DH}}, {{N, DH}, {one, N, DH}}},      // init_state
        {{{N, DCH}, {one, N, DCH}}, {{N, DCH}, {one, N, DCH}}},  // init_cell
        {{{T, N, DH}}, {{T, N, DH}}},                            // mask: whatever broadcasts to this
        {{{GH}}, {{D, GH}, {DGH}}},                              // peephole
        {{{DH}}, {{DH}}},                                        // secondary_bias
        {{{N}}, {{N}}},                                          // lengths
        {{{T, N, DGH}}, {{T, N, DGH}}},                          // source without input_weight
    }};
    if (argument == source && !has_input_weight) return kRules.back();
    return kRules.at(static_cast<std::size_t>(argument));
}

std::span<const Cell> cells() {
    static const std::array<Cell, 3> kCells{single_gate_rnn_cell(), lstm_cell(), gru_cell()};
    return kCells;
}

const Cell& cell(CellKind kind) { return cells()[static_cast<std::size_t>(kind)]; }

const Cell* find_cell(std::string_view name) {
    const auto all = cells();
    const auto found = std::ranges::find(all, name, &Cell::name);
    return found == all.end() ? nullptr : &*found;
}

Descriptor default_descriptor(CellKind kind) {
    Descriptor descriptor{.cell = kind};
    for (const Property& property : cell(kind).properties) {
        if (!property.flag) descriptor.activations[property.activation_slot] = property.default_activation;
    }
    return descriptor;
}

}  // namespace vkrnn
