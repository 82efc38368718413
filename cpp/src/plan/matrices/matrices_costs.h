// The costs of the loops on matrix units.
#pragma once

namespace vkrnn {

// The loop on matrix units with one dispatch per step. A multiprocessor runs its workgroups one after the other,
// and a subgroup its blocks along k. Products add little time, because they overlap with loads of other subgroups.
struct MatrixCosts {
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
};

struct PersistentCosts {
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
    // keeps at most most_gainful_blocks blocks of two parts in registers. rounded_loads: added forward if weights have
    // one part.
    double saved_dispatch, beyond_cache, saved_loads, rounded_loads;
    double most_gainful_blocks;
    // Limits up to which tags made GPUs faster. Forward: blocks of the state that the subgroups of one depth group
    // load. Backward: products of matrices of a workgroup, with two parts and with one.
    double most_tagged_blocks, most_tagged_products, most_rounded_tagged_products;
};

}  // namespace vkrnn
