// The products with weights around a call's loop. If a weight has blocks on its diagonal, its heads are the batches of
// a product, and gates its sets.
#pragma once

#include "builder.h"

namespace vkrnn {

// The buffers of x W^T: the source [T, N, I], W, and the gates' sums or their deltas [T, N, D G H].
struct InputProduct {
    std::size_t source = 0, weight = 0, gates = 0;
};

// Returns the product that computes the gates' sums.
Product project_product(const Spec& spec, const InputProduct& of);

// Add steps that compute the gradient of the source, and that of W. With heads, each product of the source's gradient
// is one of D G terms, which are then summed.
void add_source_gradient(PlanBuilder& builder, const InputProduct& of, bool independent);
void add_input_weight_gradient(PlanBuilder& builder, const InputProduct& of);

// The recurrent products of some gates: their slots, and those of the buffer of deltas or sums, and the operand's
// buffer [T, N, D H], or [T, N, D G H] if each slot of the weight multiplies an operand of its own. `directions` from
// `direction` on are computed.
struct RecurrentProduct {
    std::size_t operand = 0, weight = 0, gates = 0;
    std::int64_t slot = 0, slots = 0;              // of the weight
    std::int64_t gates_slot = 0, gates_slots = 0;  // the first one in the other buffer, and how many that has
    std::int64_t direction = 0, directions = 0;
    std::int64_t operand_slots = 1;  // 1 or G
};

// Adds the products of all steps.
void add_recurrent_product(PlanBuilder& builder, const std::string& label, const RecurrentProduct& of);

// Adds steps that compute the gradient of these slots of the weight.
void add_recurrent_gradient(PlanBuilder& builder, const RecurrentProduct& of, bool independent);

}  // namespace vkrnn
