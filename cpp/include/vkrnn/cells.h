// The table of cells: what each cell's operations take and return. A new cell needs a row in src/model/cells.cpp and
// one GLSL file.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "vkrnn/descriptor.h"

namespace vkrnn {

// Tensor arguments of the operations. A gradient result has the name of the argument that it belongs to.
enum class Argument : std::uint8_t {
    source,
    recurrent_weight,
    source_gradient,
    z_state,
    cell_output_fwd,
    normalizer_output_fwd,
    stabilizer_output_fwd,
    output_fwd,
    state_gradient,
    cell_gradient,
    normalizer_gradient,
    stabilizer_gradient,
    input_weight,
    bias,
    init_state,
    init_cell,
    init_normalizer,
    init_stabilizer,
    mask,
    peephole,
    secondary_bias,
    lengths,
    reset,
    reset_state,
    reset_cell,
    zoneout_mask,
    zoneout_cell_mask,
    leak,
    recurrent_bias,  // of calls in PyTorch's layout only, see Spec::torch_layout
};
constexpr std::size_t kArguments = 29;

// Results of the forward operations. The last states are those after the last step of each batch row and direction.
enum class Output : std::uint8_t {
    output,
    cell_output,
    normalizer_output,
    stabilizer_output,
    z_state,
    last_state,
    last_cell,
    last_normalizer,
    last_stabilizer
};
constexpr std::size_t kOutputs = 9;

// The tensors of a state: its initial values, the gradient that enters from above, its values as the gradients take
// them, and the results of the forward call.
struct StateTensors {
    Argument initial, gradient, forward;
    Output sequence, last;
};

// The tensors of h and of the cell states, in the order of the cells' equations.
inline constexpr std::array<StateTensors, 4> kStateTensors{{
    {Argument::init_state, Argument::state_gradient, Argument::output_fwd, Output::output, Output::last_state},
    {Argument::init_cell, Argument::cell_gradient, Argument::cell_output_fwd, Output::cell_output, Output::last_cell},
    {Argument::init_normalizer, Argument::normalizer_gradient, Argument::normalizer_output_fwd,
     Output::normalizer_output, Output::last_normalizer},
    {Argument::init_stabilizer, Argument::stabilizer_gradient, Argument::stabilizer_output_fwd,
     Output::stabilizer_output, Output::last_stabilizer},
}};

std::string_view name_of(Argument argument);
std::string_view name_of(Output output);
std::string_view name_of(Activation activation);  // empty if the value is not one of the enum's

// An axis of a symbolic shape: a letter, or H times a product of G (gates), C (cell states) and D (directions), or the
// columns of a weight, which are the units of a head or the features of an input head.
enum class Axis : std::uint8_t { T, N, I, H, DH, GH, CH, DGH, DCH, D, one, head_units, head_features };
using SymbolicShape = std::vector<Axis>;

// The shapes that an argument may have. The first one is documented; the others are accepted, too. If the last one has
// more elements than the first one, it has a row for every step or a number for every unit, where the first one has one
// for all.
struct ShapeRule {
    std::vector<SymbolicShape> unidirectional;
    std::vector<SymbolicShape> bidirectional;
};
const ShapeRule& shape_rule(Argument argument, bool has_input_weight);
const SymbolicShape& shape_rule(Output output);

struct Parameter {
    Argument argument;
    bool optional;
};

struct ActivationProperty {
    std::size_t slot;  // in Descriptor::activations
    Activation documented_default;
};

// A floating-point property with values from `least` to `most`. An infinite default is None in Python.
struct NumberProperty {
    std::size_t slot;  // in Descriptor::numbers
    double documented_default, least, most;
};

// A number of blocks, at least 1, which is the default.
struct CountProperty {
    std::size_t slot;  // in Descriptor::counts
};

// A property that is one of two words. The first one is the default, the second one sets the flag.
struct ChoiceProperty {
    Flag flag;
    std::array<std::string_view, 2> words;
};

// A property of a descriptor, with its Python name. Boolean properties are false by default.
struct Property {
    std::string_view name;
    std::variant<Flag, ActivationProperty, NumberProperty, CountProperty, ChoiceProperty> kind;
};

// The candidate gate of a cell like the GRU, which is the last gate in both gate orders. Another gate of the same step
// scales the operand of its recurrent product. The product waits for that gate, so a step has two phases.
struct Candidate {
    std::optional<Flag> scales_product;  // with this flag, the product is scaled instead: one phase computes all gates
    std::size_t scale_activation_slot;   // activation of the gate that scales
};

// Learned vectors that the cell's equations use (peephole, secondary bias), with a value for each unit and direction.
struct Vectors {
    Argument argument;
    bool weigh_cell;  // true: one per gate multiplies the previous cell state; false: one is added to a scaled product
    // With this flag, the last gate's vector multiplies the new cell state instead.
    std::optional<Flag> last_weighs_new_cell = std::nullopt;
};

// One of the conditions under which |h| never exceeds the larger of 1 and the largest initial |h|.
struct Bound {
    std::size_t activation_slot;
    bool positive;  // the activation must be in [0, 1]; otherwise in [-1, 1]
};

struct Cell {
    CellKind kind;
    std::string_view name;                    // of the forward operation: "lstm"
    std::string_view gradients_name;          // "lstm_gradients"
    std::string_view descriptor_name;         // "LSTMDescriptor"
    std::string_view shader;                  // stem of its GLSL file and kernels: "lstm"
    std::vector<std::string_view> gates;      // canonical order
    std::array<std::uint8_t, 4> slots;        // slot of each canonical gate, in the default gate order
    std::array<std::uint8_t, 4> other_slots;  // the same with forget_gate_last or reset_gate_first
    std::uint32_t cell_states;                // number of states besides h: 1 for the LSTM (its c)
    std::optional<Vectors> vectors;
    std::optional<Candidate> candidate;
    std::optional<std::vector<Bound>> bounds;  // absent if |h| can grow with any activations
    bool bounds_need_zero_cells = false;       // whether the bounds hold only without initial cell states
    std::vector<Property> properties;
    std::vector<Parameter> forward;  // in the documented order
    std::vector<Parameter> gradients;
    std::vector<Argument> gradient_order;  // order of the results; those of absent inputs are left out

    [[nodiscard]] std::uint32_t gate_count() const { return static_cast<std::uint32_t>(gates.size()); }
};

std::span<const Cell> cells();  // from cells.cpp, unless a test links its own
const Cell& cell(CellKind kind);
const Cell* find_cell(std::string_view name);  // by the name of the forward operation; null if there is none

// Returns the cell with the arguments that every cell has for resets, in their places in its orders.
Cell with_resets(Cell cell);
// Returns the cell with the arguments for blends of a step's new states with the old ones, which follow those for
// resets.
Cell with_blends(Cell cell);

// Returns a descriptor with the documented defaults.
Descriptor default_descriptor(CellKind kind);

}  // namespace vkrnn
