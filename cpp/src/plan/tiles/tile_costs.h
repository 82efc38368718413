// The costs of the loop over tiles.
#pragma once

namespace vkrnn {

struct TileCosts {
    double step, group;  // per step; per workgroup of the busiest multiprocessor
    double backward;     // factor of a backward step, relative to a forward step with the same products
    double flops_per_us, bytes_per_us;
};

}  // namespace vkrnn
