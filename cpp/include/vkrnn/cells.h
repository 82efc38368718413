// The one table of cells: what each cell's operations take and return. A new cell is a new row there and one GLSL file.
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

// Every tensor argument of the six operations. Results of the gradient operations are named after these too.
enum class Argument : std::uint8_t {
    source,
    recurrent_weight,
    source_gradient,
    z_state,
    cell_output_fwd,
    output_fwd,
    state_gradient,
    cell_gradient,
    input_weight,
    bias,
    init_state,
    init_cell,
    mask,
    peephole,
    secondary_bias,
    lengths,
};
constexpr std::size_t kArguments = 16;

// Results of the forward operations.
enum class Output : std::uint8_t { output, cell_output, z_state };

std::string_view name_of(Argument argument);
std::string_view name_of(Output output);
std::string_view name_of(Activation activation);  // empty for a number that is none

// An axis of a symbolic shape: letters, and multiples of H by the gates G, the cell states C and the directions D.
enum class Axis : std::uint8_t { T, N, I, H, DH, GH, DGH, DCH, D, one };
using SymbolicShape = std::vector<Axis>;

// The shapes that an argument may have; the first is the documented one, the others are accepted too.
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

// A floating-point property, from `least` to `most`.
struct NumberProperty {
    std::size_t slot;  // in Descriptor::numbers
    double documented_default, least, most;
};

// A property of a descriptor, by its Python name. A boolean one's documented default is false.
struct Property {
    std::string_view name;
    std::variant<Flag, ActivationProperty, NumberProperty> kind;
};

// The last gate in either order, the candidate, whose operand another gate of the same step scales first. Its product
// waits for that gate, so a step has two phases.
struct Candidate {
    std::optional<Flag> scales_product;  // with this flag the product is scaled instead: one phase forms all gates
};

// The learned vectors that the cell itself reads, with a value for each unit and direction.
struct Vectors {
    Argument argument;
    bool weigh_cell;  // one for each gate weighs the previous cell state; otherwise one is added to a scaled product
    // With this flag, the last gate's vector weighs the new cell state instead.
    std::optional<Flag> last_weighs_new_cell = std::nullopt;
};

// One of the conditions for |h| to stay within the largest of 1 and its initial values.
struct Bound {
    std::size_t activation_slot;
    bool positive;  // the activation's values lie between 0 and 1, not only between -1 and 1
};

struct Cell {
    CellKind kind;
    std::string_view name;                    // of the forward operation: "lstm"
    std::string_view gradients_name;          // "lstm_gradients"
    std::string_view descriptor_name;         // "LSTMDescriptor"
    std::string_view shader;                  // stem of its GLSL file and kernels: "lstm"
    std::vector<std::string_view> gates;      // canonical order
    std::array<std::uint8_t, 4> slots;        // position of each canonical gate in the default order ...
    std::array<std::uint8_t, 4> other_slots;  // ... and in the other one (forget_gate_last, reset_gate_first)
    std::uint32_t cell_states;                // states besides h, which make up a cell argument: 1 is the LSTM's c
    std::optional<Vectors> vectors;
    std::optional<Candidate> candidate;
    std::optional<std::vector<Bound>> bounds;  // none where |h| may grow whatever the activations
    std::vector<Property> properties;
    std::vector<Parameter> forward;  // in the order of the documented method
    std::vector<Parameter> gradients;
    std::vector<Argument> gradient_order;  // of the results; absent inputs drop out

    [[nodiscard]] std::uint32_t gate_count() const { return static_cast<std::uint32_t>(gates.size()); }
};

std::span<const Cell> cells();  // whoever links to the core chooses: those of cells.cpp, or a test's
const Cell& cell(CellKind kind);
const Cell* find_cell(std::string_view name);  // by forward name; null if there is none

// The documented defaults.
Descriptor default_descriptor(CellKind kind);

}  // namespace vkrnn
