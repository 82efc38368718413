// A forward step of one element of the state. fetch_cell reads all inputs except the recurrent products, form_cell
// computes the new state from those products, and store_cell stores it.
#ifndef VKRNN_FORWARD_CELL_GLSL
#define VKRNN_FORWARD_CELL_GLSL
#include "chosen_cell.glsl"
#include "common/step.glsl"
#include "common/vectors.glsl"

#define PRODUCTS CELL_GATES
// The gates whose recurrent products this phase computes.
#ifdef CELL_SCALE
CONSTANT uint first_product = phase == 2 ? CELL_CANDIDATE : 0;
CONSTANT uint end_product = phase == 1 ? CELL_CANDIDATE : CELL_GATES;
#else
CONSTANT uint first_product = 0;
CONSTANT uint end_product = CELL_GATES;
#endif

// The first gate that a step stores in the training state. If this is in a 16-bit type, the second phase stores the
// first phase's gates, too, which are carried to it in float32.
#ifdef VKRNN_16BIT
#define FIRST_KEPT (is_16bit(kTrainingState) ? 0u : first_product)
#else
#define FIRST_KEPT first_product
#endif

// Defined if a step reads h of the step before even if it does not blend: its cell does, or its driver's product takes h
// itself as operand.
#ifdef CELL_KEEPS_HIDDEN
#define READS_HIDDEN
#endif

struct CellInputs {
    Loaded x[CELL_GATES], bias[CELL_GATES], v[CELL_GATES], kept[CELL_GATES], before[CELL_STATES];
    Loaded mask;                              // mask on the operand of the next product
    Loaded factor, start[CELL_STATES];        // of this step's reset
    Loaded next_factor, next_start;           // of the reset before the next product
};

INLINE int next_step(Params p, Element e) { return min(e.k + 1, int(params_of(p).T) - 1); }

INLINE CellInputs fetch_cell(Params p, Element e) {
    CellInputs inputs;
    for (uint g = first_product; g < end_product; ++g) {
        inputs.x[g] = fetch_view(p, kProjected, e.direction, e.k, e.n, slot_of(g), e.j);
        inputs.bias[g] = LEARNED_BIAS(p, e, g);
    }
    for (uint i = 0; i < CELL_VECTORS; ++i) inputs.v[i] = LEARNED_VECTOR(p, e, i);
    inputs.before[0] = fetch_carried(p, kHidden, kCarryHidden, kInitHidden, e.direction, e.k, e.n, 0, e.j);
    for (uint s = 1; s < CELL_STATES; ++s)
        inputs.before[s] = fetch_carried(p, kCell, kCarryCell, kInitCell, e.direction, e.k, e.n, s - 1, e.j);
    for (uint g = 0; g < first_product; ++g)
        inputs.kept[g] = fetch_view(p, carried(kTrainingState, kCarryGates), e.direction, e.k, e.n, slot_of(g), e.j);
    inputs.mask = fetch_mask(p, e.direction, next_step(p, e), e.n, e.j);
#ifdef CELL_SCALE
    if (phase == 1) inputs.mask = fetch_slot_mask(p, e.direction, e.k, e.n, slot_of(CELL_CANDIDATE), e.j);
#endif
    inputs.factor = fetch_reset(p, kReset, e.direction, e.k, e.n, 0, e.j);
    for (uint s = 0; s < RESET_STARTS; ++s) inputs.start[s] = fetch_start(p, e.direction, e.k, e.n, s, e.j);
    int next = next_step(p, e);
    inputs.next_factor = fetch_reset(p, kReset, e.direction, next, e.n, 0, e.j);
    inputs.next_start = fetch_start(p, e.direction, next, e.n, 0, e.j);
    return inputs;
}

INLINE void clear_step(Params p, Element e) {
    if (phase == 1) return;
    clear_view(p, kHidden, e.direction, e.k, e.n, 0, e.j);
    for (uint s = 1; s < CELL_STATES; ++s) clear_view(p, kCell, e.direction, e.k, e.n, s - 1, e.j);
    if (keep != 0)
        for (uint g = 0; g < CELL_GATES; ++g) clear_view(p, kTrainingState, e.direction, e.k, e.n, slot_of(g), e.j);
}

// The results of a step. `operand` is the operand of the next product; it is 0 if the row has ended.
struct CellResults {
    bool ended;
    Real kept[CELL_GATES], after[CELL_STATES], operand;
};

// Computes the new state from the recurrent products r.
INLINE CellResults form_cell(Params p, Element e, CellInputs inputs, const Real r[CELL_GATES]) {
    CellResults made;
    made.ended = has_ended(p, e.n, e.k);
    Real x[CELL_GATES], v[CELL_GATES], before[CELL_STATES], mask = mask_of(inputs.mask);
    for (uint g = 0; g < CELL_GATES; ++g) {
        bool formed = g >= first_product && g < end_product;
        x[g] = formed ? value_of(kProjected, inputs.x[g]) + value_of(kBias, inputs.bias[g]) : 0.0f;
        v[g] = g < CELL_VECTORS ? value_of(kVectors, inputs.v[g]) : 0.0f;
        made.kept[g] = g < first_product ? value_of(carried(kTrainingState, kCarryGates), inputs.kept[g]) : 0.0f;
    }
    before[0] = carried_of(kHidden, kCarryHidden, kInitHidden, e.k, inputs.before[0]);
    for (uint s = 1; s < CELL_STATES; ++s)
        before[s] = carried_of(kCell, kCarryCell, kInitCell, e.k, inputs.before[s]);
    for (uint s = 0; s < CELL_STATES; ++s)
        before[s] = reset_of(p, e.direction, e.k, inputs.factor, s, before[s], inputs.start[s]);
#ifdef CELL_SCALE
    if (phase == 1)
        cell_forward_first(x, r, made.kept);
    else if (phase == 2)
        cell_forward_second(x, r, before, made.after, made.kept);
    else
#endif
        cell_forward(x, r, v, before, made.after, made.kept);
    for (uint s = 0; s < CELL_STATES; ++s)
        if (phase != 1 && blends(s)) {
            Real share = load_view(p, kBlend + s, e.direction, e.k, e.n, 0, e.j);
            made.after[s] = blended(share, made.after[s], before[s]);
        }
    made.operand = reset_of(p, e.direction, next_step(p, e), inputs.next_factor, 0, made.after[0],
                            inputs.next_start) * mask;
#ifdef CELL_SCALE
    if (phase == 1) made.operand = before[0] * mask * made.kept[CELL_SCALE];
#endif
    if (made.ended) made.operand = 0.0f;
    return made;
}

INLINE void store_cell(Params p, Element e, CellResults made) {
    if (made.ended) {
        clear_step(p, e);
        return;
    }
#ifdef CELL_SCALE
    if (phase == 1) {
        for (uint g = 0; g < CELL_CANDIDATE; ++g)
            store_view(p, carried(kTrainingState, kCarryGates), e.direction, e.k, e.n, slot_of(g), e.j, made.kept[g]);
        return;
    }
#endif
#ifdef READS_HIDDEN
    store_carried(p, kHidden, kCarryHidden, e.direction, e.k, e.n, 0, e.j, made.after[0]);
#else
    if (blends_hidden != 0)
        store_carried(p, kHidden, kCarryHidden, e.direction, e.k, e.n, 0, e.j, made.after[0]);
    else
        store_view(p, kHidden, e.direction, e.k, e.n, 0, e.j, made.after[0]);
#endif
    for (uint s = 1; s < CELL_STATES; ++s)
        store_carried(p, kCell, kCarryCell, e.direction, e.k, e.n, s - 1, e.j, made.after[s]);
    if (keep != 0)
        for (uint g = FIRST_KEPT; g < CELL_GATES; ++g)
            store_view(p, kTrainingState, e.direction, e.k, e.n, slot_of(g), e.j, made.kept[g]);
}

#endif
