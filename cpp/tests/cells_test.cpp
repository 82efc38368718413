// Tests the table of cells against the documented methods.
#include "vkrnn/cells.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

namespace vkrnn {
namespace {

std::string names(const std::vector<Parameter>& parameters) {
    std::string text;
    for (const Parameter& parameter : parameters) {
        text += (text.empty() ? "" : " ") + std::string(name_of(parameter.argument)) + (parameter.optional ? "?" : "");
    }
    return text;
}

std::string names(const std::vector<Argument>& arguments) {
    std::string text;
    for (const Argument argument : arguments) text += (text.empty() ? "" : " ") + std::string(name_of(argument));
    return text;
}

TEST(Cells, AreFoundByName) {
    for (const Cell& row : cells()) {
        EXPECT_EQ(find_cell(row.name), &row);
        EXPECT_EQ(&cell(row.kind), &row);
        EXPECT_EQ(std::string(row.gradients_name), std::string(row.name) + "_gradients");
    }
    EXPECT_EQ(find_cell("mgu"), nullptr);
}

TEST(Cells, TakeTheDocumentedParameters) {
    const Cell& rnn = cell(CellKind::single_gate_rnn);
    const Cell& lstm = cell(CellKind::lstm);
    const Cell& gru = cell(CellKind::gru);
    EXPECT_EQ(
        names(rnn.forward),
        "source recurrent_weight? input_weight? bias? init_state? mask? lengths? reset? reset_state? zoneout_mask? "
        "leak?");
    EXPECT_EQ(names(rnn.gradients),
              "source recurrent_weight? source_gradient? z_state state_gradient? input_weight? bias? init_state? mask? "
              "lengths? reset? reset_state? output_fwd? zoneout_mask? leak?");
    EXPECT_EQ(names(lstm.forward),
              "source recurrent_weight? input_weight? bias? init_state? init_cell? mask? peephole? lengths? reset? "
              "reset_state? reset_cell? zoneout_mask? zoneout_cell_mask? leak?");
    EXPECT_EQ(names(lstm.gradients),
              "source recurrent_weight? source_gradient? z_state cell_output_fwd state_gradient? cell_gradient? "
              "input_weight? "
              "bias? init_state? init_cell? mask? peephole? lengths? reset? reset_state? reset_cell? output_fwd? "
              "zoneout_mask? zoneout_cell_mask? leak?");
    EXPECT_EQ(
        names(gru.forward),
        "source recurrent_weight? input_weight? bias? init_state? mask? secondary_bias? lengths? reset? reset_state? "
        "zoneout_mask? leak?");
    EXPECT_EQ(
        names(gru.gradients),
        "source recurrent_weight? source_gradient? z_state output_fwd state_gradient? input_weight? bias? init_state? "
        "mask? secondary_bias? lengths? reset? reset_state? zoneout_mask? leak?");
}

TEST(Cells, ReturnGradientsInTheDocumentedOrder) {
    EXPECT_EQ(names(cell(CellKind::single_gate_rnn).gradient_order),
              "source recurrent_weight input_weight bias init_state reset reset_state leak");
    EXPECT_EQ(
        names(cell(CellKind::lstm).gradient_order),
        "source recurrent_weight input_weight bias peephole init_state init_cell reset reset_state reset_cell leak");
    EXPECT_EQ(names(cell(CellKind::gru).gradient_order),
              "source recurrent_weight input_weight bias init_state secondary_bias reset reset_state leak");
}

TEST(Cells, DefaultDescriptorsHoldTheDefaults) {
    using enum Activation;
    const std::array<Activation, kActivationSlots> lstm{sigmoid, sigmoid, tanh, sigmoid, tanh};
    EXPECT_EQ(default_descriptor(CellKind::lstm).activations, lstm);
    const std::array<Activation, kActivationSlots> gru{sigmoid, sigmoid, tanh, none, none};
    EXPECT_EQ(default_descriptor(CellKind::gru).activations, gru);
    for (const Cell& row : cells()) EXPECT_EQ(default_descriptor(row.kind).flags, 0u);
}

TEST(Cells, GateOrdersArePermutations) {
    for (const Cell& row : cells()) {
        for (const auto& slots : {row.slots, row.other_slots}) {
            const std::set<unsigned> taken(slots.begin(), slots.begin() + row.gate_count());
            EXPECT_EQ(taken.size(), row.gate_count()) << row.name;
            EXPECT_EQ(*taken.rbegin(), row.gate_count() - 1) << row.name;
        }
    }
    const std::array<std::uint8_t, 4> forget_gate_last{0, 2, 1, 3};  // of input, forget, cell, output
    EXPECT_EQ(cell(CellKind::lstm).other_slots, forget_gate_last);
    const std::array<std::uint8_t, 4> reset_gate_first{1, 0, 2, 0};  // of update, reset, output
    EXPECT_EQ(cell(CellKind::gru).other_slots, reset_gate_first);
}

TEST(Cells, EveryGradientIsOfAParameter) {
    for (const Cell& row : cells()) {
        for (const Argument argument : row.gradient_order) {
            EXPECT_NE(std::ranges::find(row.gradients, argument, &Parameter::argument), row.gradients.end());
        }
        if (row.vectors) {
            EXPECT_NE(std::ranges::find(row.gradient_order, row.vectors->argument), row.gradient_order.end());
        }
    }
}

}  // namespace
}  // namespace vkrnn
