// The names and shapes that the rows of cells.cpp refer to, and functions that find a row.
#include <algorithm>

#include "base/lazy.h"
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

// Indexed by Argument.
using ArgumentShapes = std::array<ShapeRule, kArguments + 1>;
ArgumentShapes argument_shapes() {
    using enum Axis;
    const ShapeRule of_sequence{{{T, N, DH}}, {{T, N, DH}}};
    const ShapeRule of_cells{{{T, N, DCH}}, {{T, N, DCH}}};
    const ShapeRule of_gradient{{{N, DCH}, {one, N, DCH}, {T, N, DCH}}, {{N, DCH}, {one, N, DCH}, {T, N, DCH}}};
    const ShapeRule of_blend{{{DH}, {T, N, DH}}, {{DH}, {T, N, DH}}};
    const ShapeRule of_initial{{{N, DCH}, {one, N, DCH}}, {{N, DCH}, {one, N, DCH}}};
    // The last rule is for a source without an input weight, whose channels are the gates.
    return {{
        {{{T, N, I}}, {{T, N, I}}},                              // source
        {{{GH, head_units}}, {{D, GH, head_units}}},             // recurrent_weight
        {{{T, N, DH}}, {{T, N, DH}}},                            // source_gradient
        {{{T, N, DGH}}, {{T, N, DGH}}},                          // z_state
        of_cells,                                                // cell_output_fwd
        of_cells,                                                // normalizer_output_fwd
        of_cells,                                                // stabilizer_output_fwd
        of_sequence,                                             // output_fwd
        {{{N, DH}, {one, N, DH}}, {{N, DH}, {one, N, DH}}},      // state_gradient
        of_gradient,                                             // cell_gradient
        of_gradient,                                             // normalizer_gradient
        of_gradient,                                             // stabilizer_gradient
        {{{DGH, head_features}}, {{DGH, head_features}}},        // input_weight
        {{{DGH}}, {{DGH}}},                                      // bias
        {{{N, DH}, {one, N, DH}}, {{N, DH}, {one, N, DH}}},      // init_state
        of_initial,                                              // init_cell
        of_initial,                                              // init_normalizer
        of_initial,                                              // init_stabilizer
        {{{T, N, DH}, {T, N, DGH}}, {{T, N, DH}, {T, N, DGH}}},  // mask: any shape that broadcasts to one of these
        {{{GH}}, {{D, GH}, {DGH}}},                              // peephole
        {{{DH}}, {{DH}}},                                        // secondary_bias
        {{{N}}, {{N}}},                                          // lengths
        {{{T, N}, {T, N, one}, {T, N, DH}}, {{T, N}, {T, N, one}, {T, N, DH}}},  // reset
        {{{N, DH}, {T, N, DH}}, {{N, DH}, {T, N, DH}}},                          // reset_state
        {{{N, DH}, {T, N, DH}}, {{N, DH}, {T, N, DH}}},                          // reset_cell
        of_blend,                                                                // zoneout_mask
        of_blend,                                                                // zoneout_cell_mask
        {{{}, {one}, {DH}}, {{}, {one}, {DH}}},                                  // leak
        {{{DGH}}, {{DGH}}},                                                      // recurrent_bias
        {{{T, N, DGH}}, {{T, N, DGH}}},                                          // source without input_weight
    }};
}

// Indexed by Output.
using OutputShapes = std::array<SymbolicShape, kOutputs>;
OutputShapes output_shapes() {
    using enum Axis;
    return {{{T, N, DH}, {T, N, DCH}, {T, N, DCH}, {T, N, DCH}, {T, N, DGH}, {N, DH}, {N, DCH}, {N, DCH}, {N, DCH}}};
}

}  // namespace

std::string_view name_of(Argument argument) { return kArgumentNames.at(static_cast<std::size_t>(argument)); }
std::string_view name_of(Output output) { return kOutputNames.at(static_cast<std::size_t>(output)); }
std::string_view name_of(Activation activation) {
    const auto number = static_cast<std::size_t>(activation);
    return number < kActivationNames.size() ? kActivationNames[number] : std::string_view{};
}

const ShapeRule& shape_rule(Argument argument, bool has_input_weight) {
    static constinit Lazy<ArgumentShapes> shapes;
    const ArgumentShapes& all = shapes.get(argument_shapes);
    return argument == source && !has_input_weight ? all.back() : all.at(static_cast<std::size_t>(argument));
}

const SymbolicShape& shape_rule(Output output) {
    static constinit Lazy<OutputShapes> shapes;
    return shapes.get(output_shapes).at(static_cast<std::size_t>(output));
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
