// A backward step of one element of the state. load_cell reads all inputs except the recurrent product. cell_step takes
// that product, then computes and stores the deltas and the gradient for the step before.
#ifndef VKRNN_BACKWARD_CELL_GLSL
#define VKRNN_BACKWARD_CELL_GLSL
#include "chosen_cell.glsl"
#include "common/step.glsl"
#include "common/vectors.glsl"

#define PRODUCTS 1
CONSTANT uint first_product = 0, end_product = 1;

struct CellInputs {
    bool ended, last;                    // `ended`: the step is past the row's end; `last`: it is the row's last
    Real up[CELL_STATES];                // carried from the later step, without the recurrent product's part
    Real upstream;                       // gradient of this step's output
    Real mask;                           // mask of step k + 1; second phase: of step k
    Real operand;                        // second phase: h[k-1] * m[k]
    Real kept[CELL_GATES], v[CELL_GATES], before[CELL_STATES], after[CELL_STATES];
    Real q;                              // the candidate's recurrent product, if a gate scales it
    Real begun;                          // second phase: the first phase's part of the scaling gate's delta
};

INLINE CellInputs load_cell(Params p, Element e) {
    uint d = e.direction, n = e.n, j = e.j;
    int k = e.k, here = max(k, 0);       // step -1 has no inputs of its own and ignores what it loads here
    CellInputs inputs;
    inputs.ended = has_ended(p, n, k);
    inputs.last = k == length_of(p, n) - 1;
    inputs.upstream = inputs.operand = inputs.q = inputs.begun = 0.0f;
    for (uint s = 0; s < CELL_STATES; ++s) inputs.before[s] = inputs.after[s] = 0.0f;
    for (uint g = 0; g < CELL_GATES; ++g) {
        inputs.kept[g] = load_view(p, kSaved, d, here, n, slot_of(g), j);
        inputs.v[g] = 0.0f;
    }
#ifdef CELL_SCALE
    if (phase == 2) {
        inputs.up[0] = load_view(p, kCarryHidden, d, 0, n, 0, j);
        inputs.operand = load_view(p, kOperand, d, here, n, 0, j);
        inputs.mask = load_mask(p, d, here, n, j);
        inputs.begun = load_view(p, kDelta, d, here, n, slot_of(CELL_SCALE), j);
        return inputs;
    }
#endif
    inputs.up[0] = inputs.last ? load_view(p, kLastHidden, d, 0, n, 0, j) : load_view(p, kCarryHidden, d, 0, n, 0, j);
    inputs.mask = load_mask(p, d, min(k + 1, int(p.params.T) - 1), n, j);
    inputs.upstream = load_view(p, kUpstream, d, here, n, 0, j);
    for (uint i = 0; i < CELL_VECTORS; ++i) inputs.v[i] = FIND_VECTOR(p, e, i);
#ifdef CELL_KEEPS_HIDDEN
    inputs.before[0] = load_previous(p, kHidden, kInitHidden, d, here, n, 0, j);
#endif
#ifdef CELL_SCALE
    if (scales_product != 0) inputs.q = load_view(p, kProduct, d, here, n, 0, j);
#endif
    for (uint s = 1; s < CELL_STATES; ++s) {
        inputs.up[s] = inputs.last ? load_view(p, kLastCell, d, 0, n, s - 1, j)
                                   : load_view(p, kCarryCell, d, 0, n, s - 1, j);
        inputs.before[s] = load_previous(p, kCell, kInitCell, d, here, n, s - 1, j);
        inputs.after[s] = load_view(p, kCell, d, here, n, s - 1, j);
    }
    return inputs;
}

// Computes and stores the deltas. `through` is the recurrent product: the gradient that comes from the later step.
// Returns in `dr` the gradient of each gate's recurrent product, which the next product multiplies by the weights. In a
// cell with two phases, the second phase computes `dr` only for the gate that scales the candidate's operand, and the
// first phase for all others.
INLINE void cell_step(Params p, Element e, CellInputs inputs, Real through, out Real dr[CELL_GATES]) {
    uint d = e.direction, n = e.n, j = e.j;
    int k = e.k;
    for (uint g = 0; g < CELL_GATES; ++g) dr[g] = 0.0f;
    if (inputs.ended) {
        if (phase == 2) return;
        for (uint g = 0; g < CELL_GATES; ++g) {
            clear_view(p, kDelta, d, k, n, slot_of(g), j);
#ifdef CELL_SCALE
            if (scales_product != 0) clear_view(p, kRecurrentDelta, d, k, n, slot_of(g), j);
#endif
        }
        return;
    }
    Real carry[CELL_STATES];
#ifdef CELL_SCALE
    if (phase == 2) {
        Real scale_delta[1];
        scale_delta[0] = inputs.begun;
        carry[0] = inputs.up[0];
        cell_backward_second(inputs.kept, through, inputs.operand, inputs.mask, scale_delta, carry);
        dr[CELL_SCALE] = scale_delta[0];
        store_view(p, kDelta, d, k, n, slot_of(CELL_SCALE), j, scale_delta[0]);
        store_view(p, kCarryHidden, d, 0, n, 0, j, carry[0]);
        return;
    }
#endif
    Real up[CELL_STATES];
    COPY(up, inputs.up);
    if (!inputs.last) up[0] += through * inputs.mask;
    if (k < 0) {
        store_view(p, kCarryHidden, d, 0, n, 0, j, up[0]);
        return;
    }
    up[0] += inputs.upstream;

    Real dx[CELL_GATES];
    cell_backward(inputs.kept, inputs.v, inputs.before, inputs.after, inputs.q, up, dx, dr, carry);
    for (uint g = 0; g < CELL_GATES; ++g) {
        store_view(p, kDelta, d, k, n, slot_of(g), j, dx[g]);
#ifdef CELL_SCALE
        if (scales_product != 0) store_view(p, kRecurrentDelta, d, k, n, slot_of(g), j, dr[g]);
#endif
    }
    store_view(p, kCarryHidden, d, 0, n, 0, j, carry[0]);
    for (uint s = 1; s < CELL_STATES; ++s) store_view(p, kCarryCell, d, 0, n, s - 1, j, carry[s]);
}

#endif
