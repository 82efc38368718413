// One time step backward of one direction, or a phase of it: see broadcast_step.glsl. The product is of the later step's
// deltas, in a second phase of this one's, which the first has left; at the last step the states' gradients stand where
// later steps carry theirs.
#define PRODUCTS 1
#include "broadcast_step.glsl"

// Of the parts.
float dx_[shares][CELL_GATES], dr_[shares][CELL_GATES], carry_[shares][CELL_STATES], hidden_[shares];
#ifdef CELL_FIRST_GATES
void form_second(uint part) {
    int k = push.p.step;
    float kept[CELL_GATES];
    [[unroll]] for (uint g = 0; g < CELL_GATES; ++g)
        kept[g] = load_step(part, kStepSaved, k, kOutputBackwards, CELL_GATES, slot_of(g));
    float before = load_step(part, kStepPreviousHidden, max(k - 1, 0), kOutputBackwards, 1, 0);
    carry_[part][0] = load_step(part, kStepCarryHidden, 0, 0, 1, 0);
    cell_backward_second(kept, load_product(part, 0), before, 1.0, dx_[part][CELL_RESET], carry_[part]);
    hidden_[part] = before * kept[CELL_RESET];
}
#endif
void form_part(uint part) {
#ifdef CELL_FIRST_GATES
    if (phase == 2) {
        form_second(part);
        return;
    }
#endif
    int k = push.p.step, previous = max(k - 1, 0);
    float up[CELL_STATES], kept[CELL_GATES], v[CELL_GATES], before[CELL_STATES], after[CELL_STATES], q = 0.0;
    up[0] = load_product(part, 0) + load_step(part, kStepUpstream, k, kOutputBackwards, 1, 0);
    if ((reads & kReadsCarry) != 0) up[0] += load_step(part, kStepCarryHidden, 0, 0, 1, 0);
    [[unroll]] for (uint g = 0; g < CELL_GATES; ++g) {
        kept[g] = load_step(part, kStepSaved, k, kOutputBackwards, CELL_GATES, slot_of(g));
        v[g] = load_cell_vector(part, g);
    }
    before[0] = after[0] = 0.0;
#ifdef CELL_KEEPS_HIDDEN
    before[0] = load_step(part, kStepPreviousHidden, previous, kOutputBackwards, 1, 0);
#endif
#ifdef CELL_CANDIDATE
    if (phase == 0) q = load_step(part, kStepCandidateProduct, k, kSourceBackwards, 1, 0);
#endif
#if CELL_STATES > 1
    up[1] = load_step(part, kStepCarryCell, 0, 0, 1, 0);
    before[1] = load_step(part, kStepPreviousCell, previous, kOutputBackwards, 1, 0);
    after[1] = load_step(part, kStepCell, k, kOutputBackwards, 1, 0);
#endif
    cell_backward(kept, v, before, after, q, up, dx_[part], dr_[part], carry_[part]);
#ifndef CELL_KEEPS_HIDDEN
    hidden_[part] = cell_hidden(kept, after);
#endif
}

// Whether the phase forms the delta of the gate.
bool forms_delta(uint gate) {
#ifdef CELL_FIRST_GATES
    return phase == 0 || (phase == 2) == (gate == CELL_RESET);
#else
    return true;
#endif
}

void store_parts(uint first) {
    int k = push.p.step;
    [[unroll]] for (uint g = 0; g < CELL_GATES; ++g) {
        if (forms_delta(g))
            STORE_STEP(window0, first, kStepDelta, k, kSourceBackwards, CELL_GATES, slot_of(g), dx_, [g])
#ifdef CELL_CANDIDATE
        if (phase == 0)
            STORE_STEP(window1, first, kStepRecurrentDelta, k, kSourceBackwards, CELL_GATES, slot_of(g), dr_, [g])
#endif
    }
#ifdef CELL_FIRST_GATES
    if (phase == 2) STORE_STEP(window1, first, kStepResetOperand, k, kSourceBackwards, 1, 0, hidden_, )
#endif
#ifdef CELL_KEEPS_HIDDEN
    STORE_STEP(window2, first, kStepCarried, 0, 0, 1, 0, carry_, [0])
#endif
#if CELL_STATES > 1
    STORE_STEP(window1, first, kStepCarried, 0, 0, 1, 0, carry_, [1])
#define LEFT_OPERAND window2
#else
#define LEFT_OPERAND window1
#endif
#ifndef CELL_KEEPS_HIDDEN
    if ((reads & kLeavesOperand) != 0)
        STORE_STEP(LEFT_OPERAND, first, kStepLeftOperand, k + 1, kSourceBackwards, 1, 0, hidden_, )
#endif
}

void main() {
    if (depth != 0) {
#ifdef CELL_CANDIDATE
        uint view = kStepLaterRecurrentDelta;
#else
        uint view = kStepLaterDelta;
#endif
        form_products(row_place(view, push.p.step + (phase == 2 ? 0 : 1), kSourceBackwards, CELL_GATES, first_row()) +
                          first_gate * units * 4,
                      directions * CELL_GATES * units * 4);
    }
    run_cells();
}
