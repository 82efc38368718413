// Parameters of the time loop's kernels, on GPUs and on the CPU: where each tensor's elements are in each step.
#pragma once

#include "builder.h"
#include "common/step_abi.h"

namespace vkrnn {

// The row of the time axis that step k uses: s(k) and o(k) of the specification. Only this file knows it.
//   source order: T-1-k if the call is reverse, and for the backward direction of a bidirectional call; otherwise k
//   output order: the order of execution, k; but T-1-k for the backward direction of a bidirectional call, so that its
//   rows are aligned with the source
enum class Order : std::uint8_t { source, output };

struct RowOrder {
    std::int64_t first;      // row of step 0
    std::int64_t increment;  // +1 or -1
};
RowOrder row_order(const Spec& spec, Order order, std::int64_t direction);

// Strides of states with `width` elements for each row and direction.
struct StateStrides {
    std::int64_t row, direction;
};
StateStrides state_strides(const Spec& spec, std::int64_t width);

// The parameters of the step kernels for one phase, filled view by view. Views that are not set read zeros.
class StepBlock {
public:
    explicit StepBlock(const PlanBuilder& builder);

    // The functions below set views. The comments give the shapes of their tensors.

    // [T, N, D * slots * H], or packed
    void sequence(abi::uint view, std::size_t buffer, std::int64_t slots, Order order);
    // [T, N, each], or packed, in source order, the same for both directions
    void features(abi::uint view, std::size_t buffer, std::int64_t each);
    // [N, D * slots * H], or in PyTorch's layout [D, N, slots * H], the same at every step
    void state(abi::uint view, std::size_t buffer, std::int64_t slots = 1);
    // [D, slots, H], the same for every step and batch row
    void vector(abi::uint view, std::size_t buffer, std::int64_t slots);
    // Anything that broadcasts to [T, N, D * H], rows in output order
    void mask(std::size_t buffer);
    // [T, N, 1], or [T, N, D * H] if it varies along units; packed or not, rows in output order
    void reset(std::size_t buffer);
    // States that resets start from: [T, N, D * H], or like state()
    void reset_state(abi::uint view, std::size_t buffer, bool of_steps);
    // New states' parts in a blend, with `axes` axes: [T, N, D * H] or packed, rows in output order; [D * H]; or one
    // number
    void blend(abi::uint view, std::size_t buffer, std::size_t axes);
    // [D * H, T, N], or packed, rows in output order: a row for each unit
    void columns(abi::uint view, std::size_t buffer);
    // [N] integers
    void lengths(std::size_t buffer);
    // Rows of `row` elements, of which the first `depth` are used; one matrix of `rows_each` rows per direction or
    // part.
    void weights(std::size_t buffer, std::int64_t rows_each, std::int64_t row, std::int64_t depth,
                 std::int64_t offset = 0);

    // A strategy's own view of regions, `count` of `region` elements for each direction or part, one after the other.
    // Its stride in time leads from region to region.
    void regions(abi::uint view, std::size_t buffer, std::int64_t count, std::int64_t region, std::int64_t row,
                 std::int64_t slot, std::int64_t unit);
    // Puts the address of a buffer into a view of the strategy's own, in place of one direction's tensor. For data
    // that has no elements by row and unit.
    void address(abi::uint view, std::int64_t direction, std::size_t buffer);
    // Divides the units of a direction into parts of some heads: see abi::kHasParts.
    void divide(std::int64_t part_heads);

    // Makes the product begin at element k of a region.
    void first_depth(std::int64_t k) { params_.first_depth = static_cast<std::uint32_t>(k); }

    // Makes a view that is not set, one of zeros, count as stored like a buffer: `slices` loads the initial states as
    // if they were those of a step.
    void type_like(abi::uint view, std::size_t buffer) { note_type(view, buffer); }

    // Makes all slots of a view share one place, which then has what is stored last.
    void share_slots(abi::uint view) { params_.strides[view].slot = 0; }

    // Makes a view begin `slots` slots later.
    void skip_slots(abi::uint view, std::int64_t slots);

    [[nodiscard]] Block block() const;
    [[nodiscard]] const abi::StepParams& params() const { return params_; }
    // Returns one bit per view, which is set if its sequence is packed. Such a view moves from row to row by the stride
    // of a row. Its stride in time has the same length, and its sign gives the direction.
    [[nodiscard]] std::uint32_t packed_views() const { return packed_views_; }
    // Returns how the views and the weights are stored, as Constants::stored takes it. Views that are not set count as
    // stored in the 16-bit type, because zeros are the same in every type.
    [[nodiscard]] std::uint64_t stored() const { return stored_; }

private:
    // Sets a view of rows of `row` elements for both directions. The elements of direction d begin at element d * part.
    void rows(abi::uint view, std::size_t buffer, std::int64_t row, std::int64_t part, Order order);
    void set(abi::uint view, std::int64_t direction, std::size_t buffer, std::int64_t offset, std::int64_t step);
    // Records how tensor `tensor`, a view or the weights, is stored.
    void note_type(abi::uint tensor, std::size_t buffer);
    void strides(abi::uint view, std::int64_t row, std::int64_t slot, std::int64_t unit);

    const PlanBuilder& builder_;
    const Spec& spec_;
    abi::StepParams params_{};
    std::uint32_t packed_views_ = 0;
    std::uint64_t stored_ = 0;
};

// Returns whether the gradient of any cell state has a row for every step.
bool has_each_cell(const Spec& spec);

// Returns how many cell states of a step the gradient of the learned vectors needs: 0, 1 (c[k-1]) or 2 (c[k-1] and
// c[k]).
std::uint32_t weighed_cells(const Spec& spec);

// Returns whether a gradient call needs values of the forward steps that the kernel `recompute` computes: the operand
// of the recurrent product, or cell states.
bool recomputes(const Spec& spec);

// Returns whether |h| never exceeds the largest of 1, the initial |h| and those that resets start from, nor does h
// times the gate that scales it for the second of two phases. The scale of both is then known beforehand.
bool is_bounded(const Spec& spec);

// Return the floating-point operations of the recurrent products: of one step, and of all steps.
double step_flops(const Spec& spec);
double loop_flops(const Spec& spec);

// Returns the bytes of the recurrent weights as the kernels read them.
double recurrent_bytes(const Spec& spec);

// Returns the slot of a gate, given by its canonical number, in the descriptor's gate order.
std::int64_t slot_of(const Spec& spec, std::size_t gate);

// Returns the slots of `count` gates from `first` on, with four bits each, as kernels read them.
std::uint32_t gate_order(const Spec& spec, std::int64_t first, std::int64_t count);

}  // namespace vkrnn
