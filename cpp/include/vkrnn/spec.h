// A spec holds the checked shapes and options of one call, without its data. Plans are made from it.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vkrnn/cells.h"
#include "vkrnn/descriptor.h"
#include "vkrnn/dtype.h"

namespace vkrnn {

using TensorShape = std::vector<std::int64_t>;

// The type and shape of a tensor that the caller passed. `dtype` is NumPy's name ("float32", "int64", ...).
struct TensorInfo {
    std::string dtype;
    TensorShape shape;
    std::vector<std::int64_t> integers{};  // the contents, if this is a one-dimensional tensor of integers
};
using Arguments = std::map<Argument, TensorInfo>;

// The key of a plan: everything about a call that changes its work, and nothing else.
struct Spec {
    Descriptor descriptor;
    bool gradients = false;
    Dtype dtype = Dtype::float32;             // of all tensors
    Precision precision = Precision::ieee;    // of float32 products; what spec_on() chose
    bool device_exp = false;                  // whether activations use the device's exp2; what spec_on() chose
    std::int64_t T = 0, N = 0, I = 0, H = 0;  // I = D*G*H without an input weight; N = 0 is an empty batch
    std::uint32_t present = 0;                // one bit per Argument
    bool last_states = false;                 // whether a forward call also returns the last states
    std::uint32_t largest = 0;                // one bit per Argument that has the largest of its shapes, see ShapeRule
    bool bool_reset = false;                  // whether the reset is of type bool: true starts anew
    std::array<bool, 3> mask_varies{};        // whether the mask varies along T, N and units; false: it is broadcast
    // The sum of the lengths if sequences are packed, else 0. A packed sequence has a row for each time step and live
    // batch row, step by step. Batch rows are sorted by length, the longest first.
    std::int64_t packed_rows = 0;
    // Whether the call has PyTorch's layout. States and their gradients are [D, N, C H] instead of [N, D C H]. There
    // may be a bias of the recurrent product, recurrent_bias, beside that of the input product. If a gate scales the
    // candidate's product, its part for the candidate takes the place of the secondary bias.
    bool torch_layout = false;
    // Whether a cell's states besides h, if it has several, are one tensor: [.., C H] instead of C times [.., H]. It
    // takes the place of the first one's in all arguments and results.
    bool joined_cells = false;
    // How the call takes part in a wavefront of layers (see Wavefront): the steps of each piece, 0 if it does not, and
    // how many lanes share the device.
    std::int64_t piece_steps = 0, lanes = 1;

    [[nodiscard]] std::int64_t pieces() const { return piece_steps == 0 ? 1 : (T + piece_steps - 1) / piece_steps; }
    [[nodiscard]] bool has(Argument argument) const { return ((present >> static_cast<unsigned>(argument)) & 1u) != 0; }
    // Returns whether an argument has a row for every step, a reset or leak a number for every unit, or a mask one for
    // every gate: see ShapeRule.
    [[nodiscard]] bool has_largest(Argument argument) const {
        return ((largest >> static_cast<unsigned>(argument)) & 1u) != 0;
    }
    // Return whether each gate's recurrent product has a mask of its own, and how many masks there are: one or G.
    [[nodiscard]] bool masks_gates() const { return has_largest(Argument::mask); }
    [[nodiscard]] std::int64_t mask_slots() const { return masks_gates() ? G() : 1; }
    // Returns whether a gradient call returns gradients of the reset, or of the states that it starts from.
    [[nodiscard]] bool returns_reset_gradients() const {
        return gradients &&
               ((has(Argument::reset) && !bool_reset) || has(Argument::reset_state) || has(Argument::reset_cell));
    }
    // Return whether steps blend new states with the old ones: h, and the cell state. Gradients then need h of every
    // step, because it does not follow from the training state.
    [[nodiscard]] bool blends_hidden() const { return has(Argument::zoneout_mask) || has(Argument::leak); }
    [[nodiscard]] bool blends_cell() const { return has(Argument::zoneout_cell_mask); }
    [[nodiscard]] bool blends() const { return blends_hidden() || blends_cell(); }
    // Returns whether the backward loop ends with step -1, which passes gradients on to the initial states.
    [[nodiscard]] bool passes_to_initial() const {
        return gradients && (has(Argument::init_state) || has(Argument::reset));
    }
    [[nodiscard]] const Cell& cell() const { return vkrnn::cell(descriptor.cell); }
    [[nodiscard]] std::int64_t D() const { return descriptor.has(Flag::bidirectional) ? 2 : 1; }
    [[nodiscard]] std::int64_t G() const { return cell().gate_count(); }
    [[nodiscard]] std::int64_t C() const { return cell().cell_states; }
    // Returns whether units read the states of others, or their own, through a recurrent weight.
    [[nodiscard]] bool recurs() const { return has(Argument::recurrent_weight); }
    // Return how many blocks the recurrent weight has on its diagonal, and the units of each. A unit reads only the
    // states of its own head. Without a weight, every unit is a head, because it needs nothing of another.
    [[nodiscard]] std::int64_t heads() const { return recurs() ? descriptor.counts[kHeadsSlot] : H; }
    [[nodiscard]] std::int64_t head_units() const { return H / heads(); }
    // Return the same for the input weight. Input head q has units [q, q + 1) * input_head_units() and reads features
    // [q, q + 1) * head_features().
    [[nodiscard]] std::int64_t input_heads() const { return descriptor.counts[kInputHeadsSlot]; }
    [[nodiscard]] std::int64_t input_head_units() const { return H / input_heads(); }
    [[nodiscard]] std::int64_t head_features() const { return I / input_heads(); }
    // Returns the tensors of the cell states, and how many states are in each of them.
    [[nodiscard]] std::span<const StateTensors> cell_tensors() const {
        return std::span(kStateTensors).subspan(1, joined_cells ? 1 : cell().cell_states);
    }
    [[nodiscard]] std::int64_t cells_each() const { return joined_cells ? C() : 1; }
    [[nodiscard]] bool packed() const { return packed_rows != 0; }
    // Returns the number of rows of a sequence.
    [[nodiscard]] std::int64_t rows() const { return packed() ? packed_rows : T * N; }
    // Returns whether a step has two phases: see Candidate.
    [[nodiscard]] bool two_phases() const { return recurs() && cell().candidate && !scales_product(); }
    // Returns whether a gate scales the candidate's product. The gradients then need that product.
    [[nodiscard]] bool scales_product() const {
        const auto& candidate = cell().candidate;
        return candidate && candidate->scales_product && descriptor.has(*candidate->scales_product);
    }
    // Returns the cell's learned vectors if the call has them; null otherwise.
    [[nodiscard]] const Vectors* vectors() const {
        const auto& vectors = cell().vectors;
        return vectors && has(vectors->argument) ? &*vectors : nullptr;
    }
    // Returns whether the candidate's vector is a part of recurrent_bias, the last one, instead of an argument.
    [[nodiscard]] bool vector_in_bias() const {
        return has(Argument::recurrent_bias) && vectors() != nullptr && vectors()->argument == Argument::secondary_bias;
    }
    // Returns whether learned vectors multiply the previous cell state. Their gradients then need that state.
    [[nodiscard]] bool weighs_cell() const { return vectors() != nullptr && vectors()->weigh_cell; }
    // Returns whether the last gate's vector multiplies the new cell state. Its gradient then needs that state.
    [[nodiscard]] bool weighs_new_cell() const {
        return weighs_cell() && vectors()->last_weighs_new_cell && descriptor.has(*vectors()->last_weighs_new_cell);
    }
    auto operator<=>(const Spec&) const = default;
};

// Returns the shapes that an argument of the call may have, the documented one first.
const std::vector<SymbolicShape>& accepted_shapes(const Spec& spec, Argument argument);

// Returns a symbolic shape with the sizes of a call in place of the letters.
TensorShape to_shape(const Spec& spec, const SymbolicShape& symbols);

// Returns the factor of an axis that is a multiple of H: 1 for H, D * G for DGH. Returns 0 for other axes.
std::int64_t multiple_of_h(const Spec& spec, Axis axis);

// Return the documented shape of an argument or of a forward result. A mask has size 1 on axes along which it does not
// vary. All accepted shapes of an argument have as many elements, but for one with a row for every step.
TensorShape shape_of(const Spec& spec, Argument argument);
TensorShape shape_of(const Spec& spec, Output output);

// Returns the bytes of an element of an argument, as devices get it.
std::uint64_t element_bytes_of(const Spec& spec, Argument argument);

std::int64_t elements_of(const TensorShape& shape);

// Returns a shape as messages show it: "[2, 3]".
std::string to_text(const TensorShape& shape);

// Returns the results of a forward call in their order: the documented ones, then the last states.
std::vector<Output> outputs_of(const Spec& spec);

// Returns the arguments whose gradients a gradient call returns, in the documented order.
std::vector<Argument> gradient_order_of(const Spec& spec);

// Returns the arguments that the call may have, in the documented order.
std::vector<Parameter> parameters_of(const Spec& spec);

struct ResultInfo {
    std::string name;  // "output", "cell_output", "z_state"; for gradients the argument's name
    TensorShape shape;
};

// A checked call: its spec, and its results in the documented order without the absent ones.
struct Call {
    Spec spec;
    std::vector<ResultInfo> results;
};

// What the shapes of a call's arguments do not say. If `packed`, sequences are [sum of lengths, ...] instead of
// [T, N, ...]; such a call needs lengths and takes no mask. For the others, see Spec.
struct CallForm {
    bool packed = false, torch_layout = false, joined_cells = false;
};

// Checks everything that a user can get wrong. Throws TypeError (dtype, unknown argument) or ValueError (rank, size, an
// axis of length 0 other than the batch, missing argument, number out of range). The message is a whole sentence that
// begins with the operation in brackets:
//   [lstm] recurrent_weight: expected shape [4H, H] = [512, 128], got [512, 64] (H = 128 from recurrent_weight.shape[0]
//   / 4)
// `label` is the caller's name for the call. If it is not empty, the message begins with [lstm 'label'].
Call check_call(const Descriptor& descriptor, bool gradients, const Arguments& arguments, std::string_view label = {},
                CallForm form = {});

// Throws ValueError if lengths do not fit a call: if they are out of range or, packed, if they are not in descending
// order or their sum is not the number of rows.
void check_lengths(const Spec& spec, std::span<const std::int64_t> lengths, const std::string& prefix);

// Returns the beginning of every message about a call: "[lstm]" or "[lstm_gradients 'label']".
std::string message_prefix(const Cell& cell, bool gradients, std::string_view label);

}  // namespace vkrnn
