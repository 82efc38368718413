// Shapes and descriptor of one call, checked: what a plan is made from. No Vulkan, no data.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "vkrnn/cells.h"
#include "vkrnn/descriptor.h"
#include "vkrnn/dtype.h"

namespace vkrnn {

using TensorShape = std::vector<std::int64_t>;

// A tensor as the caller handed it over. dtype is NumPy's name ("float32", "int64", ...).
struct TensorInfo {
    std::string dtype;
    TensorShape shape;
    std::vector<std::int64_t> integers{};  // the contents, of a tensor of integers with one axis
};
using Arguments = std::map<Argument, TensorInfo>;

// The key of a plan: everything that shapes the work, nothing that does not.
struct Spec {
    Descriptor descriptor;
    bool gradients = false;
    Dtype dtype = Dtype::float32;             // of all tensors
    Precision precision = Precision::ieee;    // of float32 products; what product_precision() returned
    std::int64_t T = 0, N = 0, I = 0, H = 0;  // I = D*G*H where there is no input weight; N = 0 is an empty batch
    std::uint32_t present = 0;                // one bit per Argument
    std::array<bool, 3> mask_varies{};        // whether the mask varies along T, N, D*H (false: broadcast)
    // The sum of the lengths where sequences are packed, else 0. A packed sequence has a row for each time step and
    // batch row that is live, step by step; the batch rows are sorted by length, the longest first.
    std::int64_t packed_rows = 0;

    [[nodiscard]] bool has(Argument argument) const { return ((present >> static_cast<unsigned>(argument)) & 1u) != 0; }
    [[nodiscard]] const Cell& cell() const { return vkrnn::cell(descriptor.cell); }
    [[nodiscard]] std::int64_t D() const { return descriptor.has(Flag::bidirectional) ? 2 : 1; }
    [[nodiscard]] std::int64_t G() const { return cell().gate_count(); }
    [[nodiscard]] std::int64_t C() const { return cell().cell_states; }
    [[nodiscard]] bool packed() const { return packed_rows != 0; }
    // Returns the rows of a sequence.
    [[nodiscard]] std::int64_t rows() const { return packed() ? packed_rows : T * N; }
    // Returns whether a step has two phases: see Candidate.
    [[nodiscard]] bool two_phases() const { return cell().candidate && !scales_product(); }
    // Returns whether a gate scales the candidate's product, so that the gradients need that product by itself.
    [[nodiscard]] bool scales_product() const {
        const auto& candidate = cell().candidate;
        return candidate && candidate->scales_product && descriptor.has(*candidate->scales_product);
    }
    // Returns the cell's learned vectors if the call has them; null otherwise.
    [[nodiscard]] const Vectors* vectors() const {
        const auto& vectors = cell().vectors;
        return vectors && has(vectors->argument) ? &*vectors : nullptr;
    }
    // Returns whether learned vectors weigh the previous cell state, so that their gradients need that state.
    [[nodiscard]] bool weighs_cell() const { return vectors() != nullptr && vectors()->weigh_cell; }
    // Returns whether the last gate's vector weighs the new cell state, so that its gradient needs that state.
    [[nodiscard]] bool weighs_new_cell() const {
        return weighs_cell() && vectors()->last_weighs_new_cell && descriptor.has(*vectors()->last_weighs_new_cell);
    }
    auto operator<=>(const Spec&) const = default;
};

// Returns the shapes that an argument of the call may have, the documented one first.
const std::vector<SymbolicShape>& accepted_shapes(const Spec& spec, Argument argument);

// Returns the sizes that the letters of a shape stand for in a call.
TensorShape to_shape(const Spec& spec, const SymbolicShape& symbols);

// Returns D, G or a product of them for an axis that is such a multiple of H; 0 for any other.
std::int64_t multiple_of_h(const Spec& spec, Axis axis);

// Return the documented shape of an argument, with 1 where a mask does not vary, and that of a forward result. All
// accepted shapes of an argument have as many elements.
TensorShape shape_of(const Spec& spec, Argument argument);
TensorShape shape_of(const Spec& spec, Output output);

std::int64_t elements_of(const TensorShape& shape);

struct ResultInfo {
    std::string name;  // "output", "cell_output", "z_state"; for gradients the argument's name
    TensorShape shape;
};

// A checked call: its spec and what it returns, in the documented order, packed.
struct Call {
    Spec spec;
    std::vector<ResultInfo> results;
};

// Checks everything a user can get wrong. Throws TypeError (dtype) or ValueError (rank, size, axis of length
// 0 other than the batch, missing or unknown argument) with a whole sentence that begins with the operation in
// brackets:
//   [lstm] recurrent_weight: expected shape [4H, H] = [512, 128], got [512, 64] (H = 128 from recurrent_weight.shape[0]
//   / 4)
// `label` is the caller's name for the call; where it is not empty the prefix is [lstm 'label']. If `packed`, sequences
// are packed: [sum of lengths, ...] instead of [T, N, ...]. Such a call needs lengths and takes no mask.
Call check_call(const Descriptor& descriptor, bool gradients, const Arguments& arguments, std::string_view label = {},
                bool packed = false);

// "[lstm]" or "[lstm_gradients 'label']": how every message about a call begins.
std::string message_prefix(const Cell& cell, bool gradients, std::string_view label);

}  // namespace vkrnn
