// The costs of the loop over slices.
#pragma once

namespace vkrnn {

// Rates of one multiprocessor, and cycles of a step.
struct SliceCosts {
    double cycles_per_us, products_per_cycle;
    double issues_per_cycle;                             // subgroup instructions
    double wait;                                         // latencies of shared memory, barrier and addresses
    double activation_wait, level_wait, product_wait;    // more for each; a level is one of a sum over lanes
    double shared_vec4;                                  // a subgroup's vec4 from shared memory
    double other_vec4;                                   // a vec4 of weights from global memory
    double activation_issues, gate_issues, cell_issues;  // instructions of a cell
    double dispatch;
    double most_held;  // vec4s of weights that an invocation can keep in registers
};

}  // namespace vkrnn
