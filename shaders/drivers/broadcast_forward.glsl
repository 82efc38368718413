// One time step forward of one direction, or a phase of it: see broadcast_step.glsl. The first of two phases leaves the
// second one's operand where else the hidden state goes. Gates of the first phase have the first slots, in either order.
#include "phases.glsl"
#define PRODUCTS (end_gate - first_gate)
#include "broadcast_step.glsl"

// Steps of a tensor to a step: 0 where that is one state.
int cell_stride() { return (orders & kCellIsState) != 0 ? 0 : 1; }
int saved_stride() { return (orders & kSavedIsState) != 0 ? 0 : 1; }
int operand_stride() { return phase == 2 ? 0 : 1; }
int left_stride() { return phase == 1 ? 0 : 1; }

// Of the parts.
float after_[shares][CELL_STATES], kept_[shares][CELL_GATES];
void form_part(uint part) {
    int k = push.p.step, previous = max(k - 1, 0);
    float x[CELL_GATES], r[CELL_GATES], v[CELL_GATES], before[CELL_STATES];
    [[unroll]] for (uint g = 0; g < CELL_GATES; ++g) x[g] = r[g] = v[g] = 0.0;
    [[unroll]] for (uint g = first_gate; g < end_gate; ++g) {
        uint slot = slot_of(g);
        r[g] = load_product(part, slot - first_gate);
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
#ifdef CELL_FIRST_GATES
    if (phase == 1) {
        float factor;
        cell_forward_first(x, r, kept_[part], factor);
        after_[part][0] = before[0] * factor;
        return;
    }
    if (phase == 2) {
        [[unroll]] for (uint g = 0; g < CELL_FIRST_GATES; ++g)
            kept_[part][g] =
                load_step(part, kStepFirstGates, k * saved_stride(), kOutputBackwards, CELL_GATES, slot_of(g));
        cell_forward_second(x, r, before, after_[part], kept_[part]);
        return;
    }
#endif
    cell_forward(x, r, v, before, after_[part], kept_[part]);
}

void store_parts(uint first) {
    int k = push.p.step;
    STORE_STEP(window0, first, kStepHidden, k * left_stride(), kOutputBackwards, 1, 0, after_, [0])
#if CELL_STATES > 1
    STORE_STEP(window1, first, kStepCell, k * cell_stride(), kOutputBackwards, 1, 0, after_, [1])
#endif
    if (keep != 0)
        [[unroll]] for (uint g = first_gate; g < end_gate; ++g)
            STORE_STEP(window2, first, kStepSaved, k * saved_stride(), kOutputBackwards, CELL_GATES, slot_of(g), kept_, [g])
}

void main() {
    if (depth != 0) {
        touch(kStepProjected, push.p.step, kSourceBackwards, CELL_GATES, first_gate, end_gate);
        form_products(row_place(kStepMultiplied, max(push.p.step - 1, 0) * operand_stride(), kOutputBackwards, 1,
                                first_row()),
                      directions * units * 4);
    }
    run_cells();
}
