// A backward step of one element of the state. fetch_cell reads all inputs except the recurrent product. form_cell
// takes that product and computes the deltas and the gradient for the step before, and store_cell stores them.
#ifndef VKRNN_BACKWARD_CELL_GLSL
#define VKRNN_BACKWARD_CELL_GLSL
#include "chosen_cell.glsl"
#include "common/step.glsl"
#include "common/vectors.glsl"

SPECIALIZED(kHasUpstreamCell, uint, has_upstream_cell, 0)
SPECIALIZED(kHasGradientClip, uint, has_gradient_clip, 0)
SPECIALIZED_REAL(kGradientClip, gradient_clip)

// Returns the gradient of h as the later step passes it on, limited by the option `gradient_clip`.
INLINE Real passed_on(Real gradient) {
    return has_gradient_clip == 0 || is_nan(gradient) ? gradient : clamp(gradient, -gradient_clip(), gradient_clip());
}

#define PRODUCTS 1
CONSTANT uint first_product = 0, end_product = 1;

// Returns true if this phase computes the delta of a gate.
INLINE bool forms(uint gate) {
#ifdef CELL_SCALE
    if (phase != 0) return (gate == CELL_SCALE) == (phase == 2);
#endif
    return true;
}

// Whether a step reads h before it.
#ifdef CELL_KEEPS_HIDDEN
CONSTANT bool reads_hidden = true;
#define STATES_OF_HIDDEN before   // from which cell_hidden recomputes h
#else
CONSTANT bool reads_hidden = blends_hidden != 0;
#define STATES_OF_HIDDEN after
#endif

struct CellInputs {
    bool ended, last;                      // `ended`: the step is past the row's end; `last`: it is the row's last
    Loaded up[CELL_STATES];                // carried from the later step, without the recurrent product's part
    Loaded upstream[CELL_STATES];          // gradients of this step's output and perhaps of its cell states
    Loaded mask;                           // mask of step k + 1; second phase: of step k
    Loaded operand;                        // second phase: h[k-1] * m[k]
    Loaded kept[CELL_GATES], v[CELL_GATES], before[CELL_STATES], after[CELL_STATES];
    Loaded q;                              // the candidate's recurrent product, if a gate scales this product
    Loaded begun;                          // second phase: the first phase's part of the scaling gate's delta
    Loaded factor, start[CELL_STATES];     // of this step's reset
    Loaded later_factor;                   // of the reset of step k + 1
    Loaded blend[CELL_STATES];             // the new states' parts
};

INLINE int own_step(Element e) { return max(e.k, 0); }   // step -1 has no inputs of its own and ignores what it loads

INLINE CellInputs fetch_cell(Params p, Element e) {
    uint d = e.direction, n = e.n, j = e.j;
    int k = e.k, here = own_step(e);
    CellInputs inputs;
    inputs.ended = has_ended(p, n, k);
    inputs.last = k == length_of(p, n) - 1;
    for (uint g = 0; g < CELL_GATES; ++g) inputs.kept[g] = fetch_view(p, kTrainingState, d, here, n, slot_of(g), j);
#ifdef CELL_SCALE
    if (phase == 2) {
        inputs.up[0] = fetch_view(p, kCarryHidden, d, 0, n, 0, j);
        inputs.operand = fetch_view(p, kOperand, d, here, n, slot_of(CELL_CANDIDATE), j);
        inputs.mask = fetch_slot_mask(p, d, here, n, slot_of(CELL_CANDIDATE), j);
        inputs.begun = fetch_view(p, kDelta, d, here, n, slot_of(CELL_SCALE), j);
        return inputs;
    }
#endif
    inputs.up[0] = inputs.last ? fetch_view(p, kLastHidden, d, 0, n, 0, j) : fetch_view(p, kCarryHidden, d, 0, n, 0, j);
    inputs.mask = fetch_mask(p, d, min(k + 1, int(params_of(p).T) - 1), n, j);
    inputs.upstream[0] = fetch_view(p, kUpstream, d, here, n, 0, j);
    inputs.later_factor = fetch_reset(p, kReset, d, min(k + 1, int(params_of(p).T) - 1), n, 0, j);
    inputs.factor = fetch_reset(p, kReset, d, here, n, 0, j);
    for (uint s = 0; s < RESET_STARTS; ++s) inputs.start[s] = fetch_start(p, d, here, n, s, j);
    for (uint i = 0; i < CELL_VECTORS; ++i) inputs.v[i] = LEARNED_VECTOR(p, e, i);
    if (reads_hidden) inputs.before[0] = fetch_previous(p, kHidden, kInitHidden, d, here, n, 0, j);
    for (uint s = 0; s < CELL_STATES; ++s) inputs.blend[s] = fetch_blend(p, s, d, here, n, j);
#ifdef CELL_SCALE
    if (scales_product != 0) inputs.q = fetch_view(p, kProduct, d, here, n, 0, j);
#endif
    for (uint s = 1; s < CELL_STATES; ++s) {
        inputs.up[s] = inputs.last ? fetch_view(p, kLastCell, d, 0, n, s - 1, j)
                                   : fetch_view(p, kCarryCell, d, 0, n, s - 1, j);
        if (has_upstream_cell != 0) inputs.upstream[s] = fetch_view(p, kUpstreamCell, d, here, n, s - 1, j);
        inputs.before[s] = fetch_previous(p, kCell, kInitCell, d, here, n, s - 1, j);
        inputs.after[s] = fetch_view(p, kCell, d, here, n, s - 1, j);
    }
    return inputs;
}

// The results of a step. dx are the deltas. dr has the gradient of each gate's recurrent product, which the next
// product multiplies by the weights. In a cell with two phases, the second phase computes dx and dr only for the gate
// that scales the candidate's operand, and the first phase for all others. `carry` is carried to the step before.
struct CellResults {
    bool ended;
    Real dx[CELL_GATES], dr[CELL_GATES], carry[CELL_STATES];
    bool passed_reset;             // whether the gradients from step k + 1 have passed its reset
    Real reset_up[CELL_STATES];    // these gradients before that
    Real blend_up;                 // the gradient of the new h's part
};

// Computes the deltas. `through` is the recurrent product: the gradient that comes from the later step. If each gate has
// a mask, the product has been multiplied by them.
INLINE CellResults form_cell(Params p, Element e, CellInputs inputs, Real through) {
    CellResults made;
    made.ended = inputs.ended;
    made.passed_reset = false;
    for (uint g = 0; g < CELL_GATES; ++g) made.dx[g] = made.dr[g] = 0.0f;
    if (inputs.ended) return made;
    int here = own_step(e);
    Real kept[CELL_GATES], up[CELL_STATES];
    Real mask = masks_gates && phase != 2 ? 1.0f : mask_of(inputs.mask);
    for (uint g = 0; g < CELL_GATES; ++g) kept[g] = value_of(kTrainingState, inputs.kept[g]);
#ifdef CELL_SCALE
    if (phase == 2) {
        Real scale_delta[1];
        scale_delta[0] = value_of(kDelta, inputs.begun);
        made.carry[0] = value_of(kCarryHidden, inputs.up[0]);
        cell_backward_second(kept, through, value_of(kOperand, inputs.operand), mask, scale_delta, made.carry);
        made.dx[CELL_SCALE] = made.dr[CELL_SCALE] = scale_delta[0];
        return made;
    }
#endif
    up[0] = inputs.last ? value_of(kLastHidden, inputs.up[0])
                        : value_of(kCarryHidden, inputs.up[0]) + through * mask;
    for (uint s = 1; s < CELL_STATES; ++s)
        up[s] = inputs.last ? value_of(kLastCell, inputs.up[s]) : value_of(kCarryCell, inputs.up[s]);
    made.passed_reset = !inputs.last && resets(p, e.direction, e.k + 1);
    for (uint s = 0; s < CELL_STATES; ++s) {
        made.reset_up[s] = up[s];
        if (made.passed_reset) up[s] = part(factor_of(s, value_of(kReset, inputs.later_factor)), up[s]);
        if (s == 0 && !inputs.last) up[0] = passed_on(up[0]);
        made.carry[s] = up[s];   // all that step -1 computes
    }
    if (e.k < 0) return made;
    up[0] += value_of(kUpstream, inputs.upstream[0]);

    Real v[CELL_GATES], before[CELL_STATES], after[CELL_STATES], q = 0.0f;
    before[0] = after[0] = 0.0f;
    for (uint g = 0; g < CELL_GATES; ++g) v[g] = g < CELL_VECTORS ? value_of(kVectors, inputs.v[g]) : 0.0f;
    if (reads_hidden) {
        before[0] = previous_of(kHidden, kInitHidden, here, inputs.before[0]);
        before[0] = reset_of(p, e.direction, here, inputs.factor, 0, before[0], inputs.start[0]);
    }
#ifdef CELL_SCALE
    if (scales_product != 0) q = value_of(kProduct, inputs.q);
#endif
    for (uint s = 1; s < CELL_STATES; ++s) {
        if (has_upstream_cell != 0) up[s] += value_of(kUpstreamCell, inputs.upstream[s]);
        before[s] = previous_of(kCell, kInitCell, here, inputs.before[s]);
        before[s] = reset_of(p, e.direction, here, inputs.factor, s, before[s], inputs.start[s]);
        after[s] = value_of(kCell, inputs.after[s]);
    }
    // The states after a blend are not the cell's, which are computed again.
#if CELL_STATES == 2
    if (blends_cell != 0) after[1] = cell_next(kept, before);
#endif
    made.blend_up = keeps_blend_up != 0 ? (cell_hidden(kept, STATES_OF_HIDDEN) - before[0]) * up[0] : 0.0f;
    Real past[CELL_STATES];
    for (uint s = 0; s < CELL_STATES; ++s) {
        past[s] = 0.0f;
        if (blends(s)) {
            Real share = value_of(kBlend + s, inputs.blend[s]);
            past[s] = part(1.0f - share, up[s]);
            up[s] = part(share, up[s]);
        }
    }
    cell_backward(kept, v, before, after, q, up, made.dx, made.dr, made.carry);
    for (uint s = 0; s < CELL_STATES; ++s)
        if (blends(s)) made.carry[s] += past[s];
    return made;
}

INLINE void store_delta(Params p, Element e, uint gate, CellResults made) {
    store_view(p, kDelta, e.direction, e.k, e.n, slot_of(gate), e.j, made.dx[gate]);
#ifdef CELL_SCALE
    if (scales_product != 0)
        store_view(p, kRecurrentDelta, e.direction, e.k, e.n, slot_of(gate), e.j, made.dr[gate]);
#endif
}

INLINE void clear_deltas(Params p, Element e) {
    if (phase == 2) return;
    if (keeps_blend_up != 0) clear_view(p, kBlendUp, e.direction, e.k, e.n, 0, e.j);
    for (uint g = 0; g < CELL_GATES; ++g) {
        clear_view(p, kDelta, e.direction, e.k, e.n, slot_of(g), e.j);
#ifdef CELL_SCALE
        if (scales_product != 0) clear_view(p, kRecurrentDelta, e.direction, e.k, e.n, slot_of(g), e.j);
#endif
    }
}

INLINE void store_cell(Params p, Element e, CellResults made) {
    if (made.ended) {
        clear_deltas(p, e);
        // The row has no steps, so its last cell is the initial one. For h, step -1 does the same.
        if (e.k == 0)
            for (uint s = 1; s < CELL_STATES; ++s)
                store_view(p, kCarryCell, e.direction, 0, e.n, s - 1, e.j,
                           load_view(p, kLastCell, e.direction, 0, e.n, s - 1, e.j));
        return;
    }
    store_view(p, kCarryHidden, e.direction, 0, e.n, 0, e.j, made.carry[0]);
    if (keeps_reset_up != 0 && made.passed_reset) {
        int at = e.k + 1 - reset_lag(p, e.direction);
        store_view(p, kResetUp, e.direction, at, e.n, 0, e.j, made.reset_up[0]);
        for (uint s = 1; s < CELL_STATES; ++s)
            store_view(p, kResetUpCell, e.direction, at, e.n, s - 1, e.j, made.reset_up[s]);
    }
    if (e.k < 0) {
        if (has_reset != 0)
            for (uint s = 1; s < CELL_STATES; ++s)
                store_view(p, kCarryCell, e.direction, 0, e.n, s - 1, e.j, made.carry[s]);
        return;
    }
#ifdef CELL_SCALE
    if (phase == 2) {
        store_delta(p, e, CELL_SCALE, made);
        return;
    }
#endif
    if (keeps_blend_up != 0) store_view(p, kBlendUp, e.direction, e.k, e.n, 0, e.j, made.blend_up);
    for (uint g = 0; g < CELL_GATES; ++g) store_delta(p, e, g, made);
    for (uint s = 1; s < CELL_STATES; ++s) store_view(p, kCarryCell, e.direction, 0, e.n, s - 1, e.j, made.carry[s]);
}

#endif
