// The time loop in the broadcast flavour: for each step and direction the recurrent product, then the cell.
#pragma once

#include <optional>

#include "broadcast.h"
#include "inputs.h"

namespace vkrnn {

// Whether the loop can run in this flavour; where it cannot, the portable steps take its place.
bool can_broadcast_loop(const PlanBuilder& builder);

// The buffers of a forward call. Those that a cell or call lacks are not looked at.
struct ForwardLoop {
    std::size_t projected = 0, hidden = 0, cell = 0;
    std::size_t saved = 0;        // of two phases a state where the call is not of training
    std::size_t reset_state = 0;  // what the second of two phases multiplies
    bool training = false;
    bool cell_is_state = false;  // the cell's buffer is of one step
    bool adds_bias = false;      // the projection does not have it yet
};
void broadcast_forward_loop(PlanBuilder& builder, const Inputs& inputs, const ForwardLoop& loop);

// The buffers of a gradients call. Leaves in carry_hidden and carry_cell what step 0 hands down, but for the recurrent
// product of its deltas.
struct BackwardLoop {
    std::size_t delta = 0, recurrent_delta = 0, candidate_product = 0, carry_hidden = 0, carry_cell = 0;
    // Where to leave what the recurrent products multiplied, h[k-1], for all steps in source order, as [T, N, D * H];
    // see leaves_operand().
    std::optional<std::size_t> operand = {};
    std::size_t reset_operand = 0;  // the same of the second of two phases; always left
};
void broadcast_backward_loop(PlanBuilder& builder, const Inputs& inputs, const BackwardLoop& loop);

// Whether the loop can recompute the hidden state as it goes.
bool leaves_operand(const PlanBuilder& builder);

// The operand before the loop, of cells whose hidden state is an argument.
bool can_broadcast_replay(const PlanBuilder& builder);
void broadcast_replay(PlanBuilder& builder, const Inputs& inputs, std::size_t operand);

}  // namespace vkrnn
