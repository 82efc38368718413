// What the recurrent products of several steps multiplied, h[k-1], from step 1 on, of cells whose hidden state is an
// argument. Workgroups: as in broadcast_step.glsl, but z numbers steps.
#define Z_IS_STEP
#include "broadcast_step.glsl"

float hidden_[shares];
int step_of_group() { return push.p.step + int(UNIFORM(gl_WorkGroupID.z)); }
void form_part(uint part) { hidden_[part] = load_step(part, kStepPreviousHidden, step_of_group() - 1, kOutputBackwards, 1, 0); }
void store_parts(uint first) { STORE_STEP(window0, first, kStepOperand, step_of_group(), kSourceBackwards, 1, 0, hidden_, ) }

void main() { run_cells(); }
