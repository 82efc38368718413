// The costs of the loop of cuBLASLt's products, each with a dispatch for the cells.
#pragma once

namespace vkrnn {

struct SplitCosts {
    struct Pass {
        double least;  // per step, for which the device waits for the host to launch both
        double step;
        double half_flops_per_us, rounded_flops_per_us;  // in 16-bit types, and with TF32
        double cells_per_us;
    } forward, backward;
    double half_bytes_per_us, rounded_bytes_per_us;  // of weights
};

}  // namespace vkrnn
