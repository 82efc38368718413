// Makes plans that multiply a layer's output, or its gradient, by the mask between two layers.
#pragma once

#include "vkrnn/plan.h"

namespace vkrnn {

// Returns a plan with the inputs output_fwd and mask, both [T, N, D H] of the layer's spec, and their product as
// result.
Plan make_between_plan(const Spec& layer, const Profile& profile);

}  // namespace vkrnn
