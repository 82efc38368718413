// The recurrent product of one step: the dot products of rows of the weights with rows of the operand, for one unit and
// `rows` batch rows. The work is shared among invocations in one of two ways:
//   lanes > 1   `lanes` invocations split each dot product and then add up their parts. For GPUs: loads of a row of the
//               weights are coalesced.
//   lanes == 1  Every invocation has its own unit. The subgroup loads the operand together and broadcasts it. For CPU
//               devices: a load from a different address in each invocation becomes one load per invocation there.
//               With heads, units read different parts of the operand, so each invocation loads its own.
// All loops except the one over the operand are unrolled, because some drivers end loops after a certain total number
// of iterations.
#ifndef VKRNN_PRODUCT_GLSL
#define VKRNN_PRODUCT_GLSL
#include "common/cell_step.glsl"

struct Position {
    uint direction;
    uint unit;      // may be past the last one: clamp it before loading
    uint row;       // the first of `rows` batch rows
    uint lane;      // index among the invocations that share a dot product
};

// Workgroups: x and y count (unit block, row block), unit blocks fastest; z is the direction.
INLINE Position position(uint units, uint batch) {
    uint local = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    uint block = gl_WorkGroupSize.x / lanes;
    uint blocks = (units + block - 1) / block;
    uint group = linear_group();
    return Position(gl_WorkGroupID.z, group % blocks * block + local / lanes, group / blocks * rows, local % lanes);
}

// Returns where number k of a dot product is in a row with the units of all heads, slot by slot.
INLINE uint among_heads(Params p, uint head, uint k) {
    uint units = params_of(p).head_units;
    return has_heads != 0 ? k / units * params_of(p).H + head + k % units : k;
}

// Loads numbers k to k + 3 of a dot product from a row, with zeros past its end. `head`: the first unit of the head if
// the row has the units of all heads.
INLINE Real4 load_vec4(Params p, const uint tensor, Address row, uint k, const bool has_all, uint head) {
    uint depth = params_of(p).depth;
    if (vector_loads != 0) return load4_tensor(tensor, row, has_all ? among_heads(p, head, k) : k);
    Real4 run;
    UNROLL for (uint i = 0; i < 4; ++i) {
        uint at = min(k + i, depth - 1);
        run[i] = k + i < depth ? load_tensor(tensor, row, has_all ? among_heads(p, head, at) : at) : 0.0f;
    }
    return run;
}

// The operand of a step's product: the rows of a view at `step`. If they are states, they are reset and multiplied by
// the mask as in step `into`; but masks of gates multiply them product by product.
struct Operand {
    uint view;
    int step;
    bool is_state;
    int into;
};

INLINE Real4 load_operand(Params p, Operand operand, uint direction, uint n, uint k, uint head) {
    Address row = row_address(p, operand.view, direction, operand.step, n);
    Real4 run = load_vec4(p, operand.view, row, k, true, head);
    if (operand.is_state && (has_mask != 0 || has_reset != 0))
        UNROLL for (uint i = 0; i < 4; ++i) {
            uint j = among_heads(p, head, min(k + i, params_of(p).depth - 1));
            run[i] = load_reset(p, direction, operand.into, n, 0, j, run[i]);
            if (!masks_gates) run[i] *= load_mask(p, direction, operand.into, n, j);
        }
    return run;
}

// Returns numbers k to k + 3 of the operand of gate g's product times its mask. Backward, the numbers are the deltas of
// one slot after the other, and each slot's mask is that of unit j, to which the product leads. The second of two phases
// multiplies an operand that has been masked, or its cell applies the mask.
INLINE Real4 masked_run(Params p, Operand operand, uint direction, uint n, uint k, uint head, uint g, uint j,
                        Real4 run) {
    if (masks_gates && phase != 2)
        UNROLL for (uint i = 0; i < 4; ++i) {
            uint at = min(k + i, params_of(p).depth - 1);
#ifdef BACKWARD
            run[i] *= load_slot_mask(p, direction, operand.step, n, at / params_of(p).head_units, j);
#else
            run[i] *= load_slot_mask(p, direction, operand.into, n, slot_of(g), among_heads(p, head, at));
#endif
        }
    return run;
}

CONSTANT bool broadcast = lanes == 1 && rows > 1 && has_heads == 0;
#ifdef BACKWARD
CONSTANT bool weights_of_all = true;    // whether a row of the weights has the units of all heads
#else
CONSTANT bool weights_of_all = false;
#endif
CONSTANT uint kSumBlock = 16;   // vec4s summed before they are added to the total, which keeps the rounding error small

// Computes sums[r][g], the dot product of operand row (at.row + r) and the weights row at element offset
// weight_rows[g], for first_product <= g < end_product.
INLINE void product(Params p, Position at, Operand operand, Stride weight_rows[PRODUCTS],
                    out Real sums[rows][PRODUCTS]) {
    uint vec4s = (params_of(p).depth + 3) / 4;
    uint last_row = params_of(p).N - 1, j = min(at.unit, params_of(p).H - 1), head = first_of_head(p, j);
    UNROLL for (uint r = 0; r < rows; ++r)
        UNROLL for (uint g = 0; g < PRODUCTS; ++g) sums[r][g] = 0.0f;
    for (uint block = 0; block < vec4s; block += kSumBlock * lanes) {
        Real part[rows][PRODUCTS];
        UNROLL for (uint r = 0; r < rows; ++r)
            UNROLL for (uint g = 0; g < PRODUCTS; ++g) part[r][g] = 0.0f;
        uint end = min(vec4s, block + kSumBlock * lanes);
        for (uint index = block + at.lane; index < end; index += lanes) {
            Real4 w[PRODUCTS];
            UNROLL for (uint g = first_product; g < end_product; ++g)
                w[g] = load_vec4(p, kStoredWeights,
                                 tensor_element(kStoredWeights, params_of(p).weights[at.direction], weight_rows[g]),
                                 index * 4, weights_of_all, head);
            Real4 shared_run;
            if (broadcast) {
                uint mine = min(at.row + gl_SubgroupInvocationID % rows, last_row);
                shared_run = load_operand(p, operand, at.direction, mine, index * 4, head);
            }
            UNROLL for (uint r = 0; r < rows; ++r) {
                uint n = min(at.row + r, last_row);
                Real4 run = broadcast ? subgroupBroadcast(shared_run, r)
                                      : load_operand(p, operand, at.direction, n, index * 4, head);
                UNROLL for (uint g = first_product; g < end_product; ++g)
                    part[r][g] += dot(masked_run(p, operand, at.direction, n, index * 4, head, g, j, run), w[g]);
            }
        }
        UNROLL for (uint r = 0; r < rows; ++r)
            UNROLL for (uint g = first_product; g < end_product; ++g) sums[r][g] += part[r][g];
    }
    for (uint apart = lanes / 2; apart > 0; apart /= 2)
        UNROLL for (uint r = 0; r < rows; ++r)
            UNROLL for (uint g = first_product; g < end_product; ++g)
                sums[r][g] += subgroupShuffleXor(sums[r][g], apart);
}

#endif
