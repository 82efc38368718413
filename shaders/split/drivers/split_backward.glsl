// Backward: see split.glsl. The product is the gradient that comes from the later step. Step -1 only takes this
// gradient from step 0: it is the gradient of the initial state.
// In float16, deltas may be too small or too large. Each workgroup then multiplies the operand of its row and its unit
// block by a power of two, which brings the absmax to between 2^13 and 2^14. The product's sum has a part for each gate
// and unit block, and the next step multiplies each part by the inverse.
#define BACKWARD
#include "split/split.glsl"

SPECIALIZED(kSplitParts, uint, parts, 1)
SPECIALIZED(kSplitBlocks, uint, scaled_blocks, 0)

#ifdef VKRNN_FLOAT64
INLINE Real part_factor(Params p, Element e, uint part) { return 1.0f; }
INLINE Real scale_operand(Params p, Element e, bool there, const Real dr[CELL_GATES]) { return 1.0f; }
#else
SHARED(uint, block_absmax)
REFERENCE(BlockScale, uint, value, 4)
CONSTANT uint kScaledAbsmax = 13, kLeastExponent = 14;   // the former is a power of two, the latter a float's exponent

// Step `step` stores its scales beside those of step + 1, which other workgroups of the row may not have read yet.
INLINE Address scale_address(Params p, Element e, int step, uint block) {
    uint row = 2 * (e.direction * params_of(p).N + e.n) + uint(step & 1);
    return params_of(p).at[2 * kBlockScales] + Address(row * scaled_blocks + block) * 4;
}

// Returns the factor of part `part` of a product.
INLINE Real part_factor(Params p, Element e, uint part) {
    if (scaled_blocks == 0) return 1.0f;
    uint exponent = BlockScale(scale_address(p, e, e.k + 1, part % max(scaled_blocks, 1u))).value;
    return uintBitsToFloat(exponent - kScaledAbsmax << 23);
}

// Returns the factor of the workgroup's operand, and stores its inverse for the next step. All invocations call it;
// `there`: this one has a cell.
INLINE Real scale_operand(Params p, Element e, bool there, const Real dr[CELL_GATES]) {
    if (scaled_blocks == 0) return 1.0f;
    uint absmax = 0;   // as bits, which are ordered as the numbers are
    for (uint g = 0; g < CELL_GATES; ++g) {
        uint bits = floatBitsToUint(dr[g]) & 0x7fffffffu;
        if (there && bits < 0x7f800000u) absmax = max(absmax, bits);   // infinity and NaN do not count
    }
    if (gl_LocalInvocationID.x == 0) block_absmax = 0;
    barrier();
    for (uint apart = gl_SubgroupSize / 2; apart > 0; apart /= 2)
        absmax = max(absmax, subgroupShuffleXor(absmax, apart));
    if (subgroupElect()) atomicMax(block_absmax, absmax);
    barrier();
    uint exponent = max(block_absmax >> 23, kLeastExponent);
    if (gl_LocalInvocationID.x == 0) BlockScale(scale_address(p, e, e.k, e.j / block_units)).value = exponent;
    return uintBitsToFloat(254 + kScaledAbsmax - exponent << 23);
}
#endif

void main() {
    Params p = Params(push.params);
    Element e;
    bool there = find_cell(p, e);
    if (e.n >= params_of(p).N) return;   // the whole workgroup
    bool has_product = phase == 2 || e.k + 1 < int(params_of(p).T);   // the last step has no later one
    CellResults made;
    for (uint g = 0; g < CELL_GATES; ++g) made.dr[g] = 0.0f;
    if (there) {
        CellInputs inputs = fetch_cell(p, e);
        Real sum[parts], through = 0.0f;
        UNROLL for (uint i = 0; i < parts; ++i)
            sum[i] = has_product ? load_view(p, kStepProduct, e.direction, 0, e.n, i, e.j) : 0.0f;
        if (has_product) UNROLL for (uint i = 0; i < parts; ++i) through += sum[i] * part_factor(p, e, i);
        made = form_cell(p, e, inputs, through);
        store_cell(p, e, made);
    }
    if (e.k < 0) return;
    Real factor = scale_operand(p, e, there, made.dr);
    for (uint g = 0; g < CELL_GATES; ++g)
        if (there && forms(g)) store_view(p, kStepOperand, e.direction, 0, e.n, slot_of(g), e.j, made.dr[g] * factor);
}
