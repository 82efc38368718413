// The time loop as the portable step kernels run it, but for the recurrent products: kernels of the broadcast flavour
// form those in between. For the calls that this flavour has no step kernels for: masks, lengths, odd sizes.
#pragma once

#include "inputs.h"

namespace vkrnn {

// Whether the products can be of that flavour; where they cannot, the portable steps form them.
bool can_loop_with_products(const PlanBuilder& builder);

// Steps forward; `views` has those of the call, `options` what does not differ by phase.
void product_forward_loop(PlanBuilder& builder, const Inputs& inputs, const StepBlock& views, StepOptions options);

// Steps back, the last of which leaves the gradient of the initial state where there is one.
void product_backward_loop(PlanBuilder& builder, const Inputs& inputs, const StepBlock& views);

}  // namespace vkrnn
