// One time step forward of one direction: see broadcast_step.glsl.
#define PRODUCTS CELL_GATES
#include "broadcast_step.glsl"

// Steps of the cell state's tensor to a step: 0 where that is one state.
int cell_stride() { return (orders & kCellIsState) != 0 ? 0 : 1; }

// Of the parts.
float after_[shares][CELL_STATES], kept_[shares][CELL_GATES];
void form_part(uint part) {
    int k = push.p.step, previous = max(k - 1, 0);
    float x[CELL_GATES], r[CELL_GATES], v[CELL_GATES], before[CELL_STATES];
    [[unroll]] for (uint g = 0; g < CELL_GATES; ++g) {
        uint slot = slot_of(g);
        r[g] = load_product(part, slot);
        x[g] = load_step(part, kStepProjected, k, kSourceBackwards, CELL_GATES, slot);
        if ((reads & kReadsBias) != 0) x[g] += load_vector(part, kStepBias, slot);
        v[g] = load_cell_vector(part, g);
    }
    before[0] = 0.0;
#ifdef CELL_KEEPS_HIDDEN
    before[0] = load_step(part, kStepPreviousHidden, previous, kOutputBackwards, 1, 0);
#endif
#if CELL_STATES > 1
    before[1] = load_step(part, kStepPreviousCell, previous * cell_stride(), kOutputBackwards, 1, 0);
#endif
    cell_forward(x, r, v, before, after_[part], kept_[part]);
}

void store_parts(uint first) {
    int k = push.p.step;
    STORE_STEP(window0, first, kStepHidden, k, kOutputBackwards, 1, 0, after_, [0])
#if CELL_STATES > 1
    STORE_STEP(window1, first, kStepCell, k * cell_stride(), kOutputBackwards, 1, 0, after_, [1])
#endif
    if (keep != 0)
        [[unroll]] for (uint g = 0; g < CELL_GATES; ++g)
            STORE_STEP(window2, first, kStepSaved, k, kOutputBackwards, CELL_GATES, slot_of(g), kept_, [g])
}

void main() {
    if (depth != 0) {
        touch(kStepProjected, push.p.step, kSourceBackwards, CELL_GATES);
        form_products(row_place(kStepMultiplied, max(push.p.step - 1, 0), kOutputBackwards, 1, first_row()),
                      directions * units * 4);
    }
    run_cells();
}
