// The table of the cells that exist in tests only. A cell's kind is its index in this table.
#include "vkrnn/cells.h"

namespace vkrnn {
namespace {

using enum Argument;
using enum Activation;

constexpr bool kRequired = false, kOptional = true;

Cell minimal_gated_unit() {
    return {
        .kind = CellKind{0},
        .name = "mgu",
        .gradients_name = "mgu_gradients",
        .descriptor_name = "MGUDescriptor",
        .shader = "mgu",
        .gates = {"forget", "candidate"},
        .slots = {0, 1},
        .other_slots = {0, 1},
        .cell_states = 0,
        .vectors = std::nullopt,
        .candidate = Candidate{.scales_product = Flag::reset_after, .scale_activation_slot = 0},
        .bounds = std::vector<Bound>{{0, true}, {1, false}},
        .properties = {{"reverse", Flag::reverse},
                       {"bidirectional", Flag::bidirectional},
                       {"training", Flag::training},
                       {"reset_after", Flag::reset_after},
                       {"forget_gate_activation", ActivationProperty{0, sigmoid}},
                       {"candidate_activation", ActivationProperty{1, tanh}},
                       {"zoneout", NumberProperty{0, 0.0, 0.0, 1.0}}},
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
                      {output_fwd, kRequired},
                      {state_gradient, kOptional},
                      {input_weight, kOptional},
                      {bias, kOptional},
                      {init_state, kOptional},
                      {mask, kOptional},
                      {lengths, kOptional}},
        .gradient_order = {source, recurrent_weight, input_weight, bias, init_state},
    };
}

Cell coupled_lstm() {
    return {
        .kind = CellKind{1},
        .name = "coupled_lstm",
        .gradients_name = "coupled_lstm_gradients",
        .descriptor_name = "CoupledLSTMDescriptor",
        .shader = "coupled_lstm",
        .gates = {"input", "cell", "output"},
        .slots = {0, 1, 2},
        .other_slots = {1, 0, 2},
        .cell_states = 1,
        .vectors = std::nullopt,
        .candidate = std::nullopt,
        .bounds = std::vector<Bound>{{2, false}},
        .properties = {{"reverse", Flag::reverse},
                       {"bidirectional", Flag::bidirectional},
                       {"training", Flag::training},
                       {"produce_cell", Flag::produce_cell},
                       {"cell_gate_first", Flag::other_gate_order},
                       {"input_gate_activation", ActivationProperty{0, sigmoid}},
                       {"cell_gate_activation", ActivationProperty{1, tanh}},
                       {"output_gate_activation", ActivationProperty{2, sigmoid}}},
        .forward = {{source, kRequired},
                    {recurrent_weight, kRequired},
                    {input_weight, kOptional},
                    {bias, kOptional},
                    {init_state, kOptional},
                    {init_cell, kOptional},
                    {mask, kOptional},
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
                      {lengths, kOptional}},
        .gradient_order = {source, recurrent_weight, input_weight, bias, init_state, init_cell},
    };
}

}  // namespace

std::span<const Cell> cells() {
    static const std::array<Cell, 2> kCells{with_blends(with_resets(minimal_gated_unit())),
                                            with_blends(with_resets(coupled_lstm()))};
    return kCells;
}

}  // namespace vkrnn
