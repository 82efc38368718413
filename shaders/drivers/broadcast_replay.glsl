// What the recurrent products of several steps multiplied, h[k-1], recomputed as in replay.glsl, from step 1 on: without
// a mask, lengths, or a reset before the product. Workgroups: as in broadcast_step.glsl, but z numbers steps.
#define Z_IS_STEP
#include "broadcast_step.glsl"

void run_cell() {
    int k = push.p.step + int(UNIFORM(gl_WorkGroupID.z));
    Lanes hidden;
#ifdef CELL_KEEPS_HIDDEN
    hidden = load_step(kStepPreviousHidden, k - 1, kOutputBackwards, 1, 0);
#else
    Lanes kept[CELL_GATES], after[CELL_STATES];
    [[unroll]] for (uint g = 0; g < CELL_GATES; ++g)
        kept[g] = load_step(kStepSaved, k - 1, kOutputBackwards, CELL_GATES, slot_of(g));
    after[0] = zeros();
#if CELL_STATES > 1
    after[1] = load_step(kStepCell, k - 1, kOutputBackwards, 1, 0);
#endif
    [[unroll]] for (uint h = 0; h < halves; ++h) {
        Real kepts[CELL_GATES], afters[CELL_STATES];
        [[unroll]] for (uint g = 0; g < CELL_GATES; ++g) kepts[g] = kept[g].half_[h];
        [[unroll]] for (uint i = 0; i < CELL_STATES; ++i) afters[i] = after[i].half_[h];
        hidden.half_[h] = cell_hidden(kepts, afters);
    }
#endif
    STORE_STEP(window0, kStepOperand, k, kSourceBackwards, 1, 0, hidden)
}

void main() {
    choose(0);
    run_cell();
    if (shares > 2) {   // no loop: the driver would not unroll it
        choose(2);
        run_cell();
    }
}
