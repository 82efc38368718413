// The costs with which strategies estimate times. They are data: costs.cpp has one table per family of GPUs, and
// bench/fit_costs.py measures a GPU and prints its table.
#pragma once

#include <span>
#include <string_view>

#include "vkrnn/costs.h"

namespace vkrnn {

// Times are in microseconds, "us" in names. All members are numbers of type double, in structs.
struct Costs {
    struct Steps {
        double dispatch;  // of a small dispatch, with the barrier before it
        double flops_per_us, weight_bytes_per_us;
    } steps;

    struct Tiles {
        double step, group;  // per step; per workgroup of the busiest multiprocessor
        double backward;     // factor of a backward step, relative to a forward step with the same products
        double flops_per_us, bytes_per_us;
    } tiles;

    // Rates of one multiprocessor, and cycles of a step.
    struct Slices {
        double cycles_per_us, products_per_cycle;
        double issues_per_cycle;                             // subgroup instructions
        double wait;                                         // latencies of shared memory, barrier and addresses
        double activation_wait, level_wait, product_wait;    // more for each; a level is one of a sum over lanes
        double shared_vec4;                                  // a subgroup's vec4 from shared memory
        double other_vec4;                                   // a vec4 of weights from global memory
        double activation_issues, gate_issues, cell_issues;  // instructions of a cell
        double dispatch;
        double most_held;  // vec4s of weights that an invocation can keep in registers
    } slices;

    // The loop on matrix units with one dispatch per step. A multiprocessor runs its workgroups one after the other,
    // and a subgroup its blocks along k. Products add little time, because they overlap with loads of other subgroups.
    struct Matrices {
        struct Pass {
            double step, block;  // per step; per block of a subgroup
            double product;      // per product of half-precision matrices
            double row;          // per row of matrices
        } forward, backward;
        double one_part_ahead, two_parts_ahead;  // factor of a block if two are loaded ahead, by parts of a weight
        double sum;                              // per matrix of sums that goes through shared memory
        double cell;                             // per cell of an invocation after the first
        double memory_bytes_per_us;              // counts only the time for which a step waits
        double l2_bytes;                         // each row of tiles reads larger weights from memory
    } matrices;

    struct Persistent {
        struct Forward {
            double step;
            double count;         // per step without tags, in which workgroups count who has stored
            double sixteen;       // extra per step with 16 depth groups instead of 8
            double sum;           // per matrix of sums that goes through shared memory
            double block;         // per block of a subgroup
            double block_row;     // per block and row of matrices; loads are sequential
            double bytes_per_us;  // of all multiprocessors together
            double flops_per_us;  // of one multiprocessor
            double cell;          // per further cell; the first one's loads wait for nothing
            double free_sums;     // number of sums that cost nothing, because subgroups wait for each other anyway
        } forward;
        struct Backward {
            double step;
            double product;        // per product of matrices on a multiprocessor
            double block;          // per block of a subgroup, without tags
            double waiting_block;  // per block and workgroup, with tags: waiting reloads it
            double sixteen;        // extra per step with 16 depth groups, with tags
            double more_block;     // per block of a subgroup after the first `register_blocks`
            double tile;           // per gate and matrix of cells after the first
            double delta;          // per gate and further cell: they do not fit in registers
            double register_blocks;
        } backward;
        double dispatch;
        // Corrections to the costs of `matrices` for a step that loads its weights in this loop. saved_dispatch: per
        // step whose weights stay in the L2 cache. beyond_cache: added if they do not. saved_loads: if one column group
        // keeps at most most_gainful_blocks blocks of two parts in registers.
        double saved_dispatch, beyond_cache, saved_loads;
        double most_gainful_blocks;
        // Limits up to which tags made GPUs faster. Forward: blocks of the state that the subgroups of one depth group
        // load. Backward: products of matrices of a workgroup, with two parts and with one.
        double most_tagged_blocks, most_tagged_products, most_rounded_tagged_products;
    } persistent;

    // The loop of cuBLASLt's products, each with a dispatch for the cells.
    struct Split {
        struct Pass {
            double least;  // per step, for which the device waits for the host to launch both
            double step;
            double half_flops_per_us, rounded_flops_per_us;  // in 16-bit types, and with TF32
            double cells_per_us;
        } forward, backward;
        double half_bytes_per_us, rounded_bytes_per_us;  // of weights
    } split;

    struct Products {
        double least_flops;  // the fixed cost of a call's portable products, as operations that take as long
        double register_flops_per_us, tiled_flops_per_us;
        double matrix_call;                                // to prepare the operands for matrix units
        double matrix_flops_per_us, rounded_flops_per_us;  // with three half-precision products, and with one
        // The tiled kernel finishes products with fewer operations before operands for matrix units would be ready.
        double least_matrix_flops;
        double float64_factor;  // of the time of the portable kernels, relative to float32
        // Of cuBLASLt. A forward call begins with its product, so the device waits while the host prepares it.
        double library_forward, library_gradients;
        double library_flops_per_us;        // with TF32
        double half_library_flops_per_us;   // in 16-bit types
        double exact_library_flops_per_us;  // in float32 and float64
    } products;
};

// The costs of one family of GPUs.
struct CostTable {
    std::span<const std::string_view> gpus;  // parts of the names of its GPUs
    std::string_view card;                   // what was measured
    Costs costs;
};

// Returns the table of a device's family, or another one if no table was fitted to it.
const CostTable& cost_table(const Profile& profile);
inline const Costs& costs_of(const Profile& profile) { return cost_table(profile).costs; }

// Returns the costs with the values of cost_values().
Costs costs_from(std::span<const double> values);

}  // namespace vkrnn
