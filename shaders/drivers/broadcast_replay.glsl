// What the recurrent products of several steps multiplied, h[k-1], from step 1 on, of cells whose hidden state is an
// argument. Workgroups: as in broadcast_step.glsl, but z numbers steps.
#define Z_IS_STEP
#include "broadcast_step.glsl"

void run_cell() {
    int k = push.p.step + int(UNIFORM(gl_WorkGroupID.z));
    Lanes hidden = load_step(kStepPreviousHidden, k - 1, kOutputBackwards, 1, 0);
    STORE_STEP(window0, kStepOperand, k, kSourceBackwards, 1, 0, hidden)
}

void main() {
    RUN_CELLS
}
