// The plan of a call with an empty batch.
#pragma once

#include "vkrnn/plan.h"

namespace vkrnn {

// Returns a plan without kernels. Results with a batch axis have no elements, and sums over the batch are zeros.
Plan make_empty_plan(const Spec& spec, const StrategyChoice& choice);

}  // namespace vkrnn
