// The costs of the loop with a dispatch for each step.
#pragma once

namespace vkrnn {

struct StepCosts {
    double dispatch;  // of a small dispatch, with the barrier before it
    double flops_per_us, weight_bytes_per_us;
};

}  // namespace vkrnn
