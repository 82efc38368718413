// The names and shapes that the rows of cells.cpp refer to, and functions that find a row.
#include <algorithm>

#include "vkrnn/cells.h"

namespace vkrnn {
namespace {

using enum Argument;

constexpr std::array<std::string_view, kArguments> kArgumentNames{
    "source",
    "recurrent_weight",
    "source_gradient",
    "z_state",
    "cell_output_fwd",
    "normalizer_output_fwd",
    "stabilizer_output_fwd",
    "output_fwd",
    "state_gradient",
    "cell_gradient",
    "normalizer_gradient",
    "stabilizer_gradient",
    "input_weight",
    "bias",
    "init_state",
    "init_cell",
    "init_normalizer",
    "init_stabilizer",
    "mask",
    "peephole",
    "secondary_bias",
    "lengths",
    "reset",
    "reset_state",
    "reset_cell",
    "zoneout_mask",
    "zoneout_cell_mask",
    "leak",
    "recurrent_bias",
};
constexpr std::array<std::string_view, kOutputs> kOutputNames{
    "output",     "cell_output", "normalizer_output", "stabilizer_output", "z_state",
    "last_state", "last_cell",   "last_normalizer",   "last_stabilizer"};
constexpr std::array<std::string_view, 5> kActivationNames{"none", "relu", "tanh", "sigmoid", "hard_sigmoid"};

}  // namespace

std::string_view name_of(Argument argument) { return kArgumentNames.at(static_cast<std::size_t>(argument)); }
std::string_view name_of(Output output) { return kOutputNames.at(static_cast<std::size_t>(output)); }
std::string_view name_of(Activation activation) {
    const auto number = static_cast<std::size_t>(activation);
    return number < kActivationNames.size() ? kActivationNames[number] : std::string_view{};
}

const ShapeRule& shape_rule(Argument argument, bool has_input_weight) {
    using enum Axis;
    static const ShapeRule kOfSequence{{{T, N, DH}}, {{T, N, DH}}};
    static const ShapeRule kOfCells{{{T, N, DCH}}, {{T, N, DCH}}};
    static const ShapeRule kOfGradient{{{N, DCH}, {one, N, DCH}, {T, N, DCH}}, {{N, DCH}, {one, N, DCH}, {T, N, DCH}}};
    static const ShapeRule kOfBlend{{{DH}, {T, N, DH}}, {{DH}, {T, N, DH}}};
    static const ShapeRule kOfInitial{{{N, DCH}, {one, N, DCH}}, {{N, DCH}, {one, N, DCH}}};
    // Indexed by Argument. The last rule is for a source without an input weight, whose channels are the gates.
    static const std::array<ShapeRule, kArguments + 1> kRules{{
        {{{T, N, I}}, {{T, N, I}}},                              // source
        {{{GH, head_units}}, {{D, GH, head_units}}},             // recurrent_weight
        {{{T, N, DH}}, {{T, N, DH}}},                            // source_gradient
        {{{T, N, DGH}}, {{T, N, DGH}}},                          // z_state
        kOfCells,                                                // cell_output_fwd
        kOfCells,                                                // normalizer_output_fwd
        kOfCells,                                                // stabilizer_output_fwd
        kOfSequence,                                             // output_fwd
        {{{N, DH}, {one, N, DH}}, {{N, DH}, {one, N, DH}}},      // state_gradient
        kOfGradient,                                             // cell_gradient
        kOfGradient,                                             // normalizer_gradient
        kOfGradient,                                             // stabilizer_gradient
        {{{DGH, head_features}}, {{DGH, head_features}}},        // input_weight
        {{{DGH}}, {{DGH}}},                                      // bias
        {{{N, DH}, {one, N, DH}}, {{N, DH}, {one, N, DH}}},      // init_state
        kOfInitial,                                              // init_cell
        kOfInitial,                                              // init_normalizer
        kOfInitial,                                              // init_stabilizer
        {{{T, N, DH}, {T, N, DGH}}, {{T, N, DH}, {T, N, DGH}}},  // mask: any shape that broadcasts to one of these
        {{{GH}}, {{D, GH}, {DGH}}},                              // peephole
        {{{DH}}, {{DH}}},                                        // secondary_bias
        {{{N}}, {{N}}},                                          // lengths
        {{{T, N}, {T, N, one}, {T, N, DH}}, {{T, N}, {T, N, one}, {T, N, DH}}},  // reset
        {{{N, DH}, {T, N, DH}}, {{N, DH}, {T, N, DH}}},                          // reset_state
        {{{N, DH}, {T, N, DH}}, {{N, DH}, {T, N, DH}}},                          // reset_cell
        kOfBlend,                                                                // zoneout_mask
        kOfBlend,                                                                // zoneout_cell_mask
        {{{}, {one}, {DH}}, {{}, {one}, {DH}}},                                  // leak
        {{{DGH}}, {{DGH}}},                                                      // recurrent_bias
        {{{T, N, DGH}}, {{T, N, DGH}}},                                          // source without input_weight
    }};
    if (argument == source && !has_input_weight) return kRules.back();
    return kRules.at(static_cast<std::size_t>(argument));
}

const SymbolicShape& shape_rule(Output output) {
    using enum Axis;
    static const std::array<SymbolicShape, kOutputs> kRules{{{T, N, DH},
                                                             {T, N, DCH},
                                                             {T, N, DCH},
                                                             {T, N, DCH},
                                                             {T, N, DGH},
                                                             {N, DH},
                                                             {N, DCH},
                                                             {N, DCH},
                                                             {N, DCH}}};  // indexed by Output
    return kRules.at(static_cast<std::size_t>(output));
}

const Cell& cell(CellKind kind) { return cells()[static_cast<std::size_t>(kind)]; }

const Cell* find_cell(std::string_view name) {
    const auto all = cells();
    const auto found = std::ranges::find(all, name, &Cell::name);
    return found == all.end() ? nullptr : &*found;
}

Cell with_resets(Cell cell) {
    std::vector<Argument> resets{reset, reset_state};
    if (cell.cell_states > 0) resets.push_back(reset_cell);
    for (const Argument argument : resets) {
        cell.forward.push_back({argument, true});
        cell.gradients.push_back({argument, true});
        cell.gradient_order.push_back(argument);
    }
    return cell;
}

Cell with_blends(Cell cell) {
    const auto is_output = [](const Parameter& each) { return each.argument == output_fwd; };
    if (std::ranges::none_of(cell.gradients, is_output)) cell.gradients.push_back({output_fwd, true});
    std::vector<Argument> blends{zoneout_mask};
    if (cell.cell_states == 1) blends.push_back(zoneout_cell_mask);
    blends.push_back(leak);
    for (const Argument argument : blends) {
        cell.forward.push_back({argument, true});
        cell.gradients.push_back({argument, true});
    }
    cell.gradient_order.push_back(leak);
    return cell;
}

Descriptor default_descriptor(CellKind kind) {
    Descriptor descriptor{.cell = kind};
    for (const Property& property : cell(kind).properties) {
        if (const auto* activation = std::get_if<ActivationProperty>(&property.kind))
            descriptor.activations.at(activation->slot) = activation->documented_default;
        if (const auto* number = std::get_if<NumberProperty>(&property.kind))
            descriptor.numbers.at(number->slot) = number->documented_default;
    }
    return descriptor;
}

}  // namespace vkrnn
