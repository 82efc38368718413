// One time step forward of one direction: see broadcast_step.glsl.
#define PRODUCTS CELL_GATES
#include "broadcast_step.glsl"

void run_cell() {
    int k = push.p.step, previous = max(k - 1, 0);
    Lanes x[CELL_GATES], r[CELL_GATES], v[CELL_GATES], before[CELL_STATES], after[CELL_STATES], kept[CELL_GATES];
    [[unroll]] for (uint g = 0; g < CELL_GATES; ++g) {
        uint slot = slot_of(g);
        x[g] = load_step(kStepProjected, k, kSourceBackwards, CELL_GATES, slot);
        if ((reads & kReadsBias) != 0) add(x[g], load_vector(kStepBias, slot));
        r[g] = load_product(slot);
        v[g] = zeros();
    }
    if ((reads & kReadsVectors) != 0)
        [[unroll]] for (uint i = 0; i < CELL_VECTORS; ++i) v[i] = load_vector(kStepVectors, CELL_VECTORS > 1 ? slot_of(i) : 0);
    before[0] = zeros();
#ifdef CELL_KEEPS_HIDDEN
    before[0] = load_step(kStepPreviousHidden, previous, kOutputBackwards, 1, 0);
#endif
#if CELL_STATES > 1
    int cell_step = (orders & kCellIsState) != 0 ? 0 : 1;
    before[1] = load_step(kStepPreviousCell, previous * cell_step, kOutputBackwards, 1, 0);
#endif

    [[unroll]] for (uint h = 0; h < halves; ++h) {
        Real xs[CELL_GATES], rs[CELL_GATES], vs[CELL_GATES], befores[CELL_STATES], afters[CELL_STATES], kepts[CELL_GATES];
        [[unroll]] for (uint g = 0; g < CELL_GATES; ++g) {
            xs[g] = x[g].half_[h];
            rs[g] = r[g].half_[h];
        }
        [[unroll]] for (uint i = 0; i < CELL_GATES; ++i) vs[i] = v[i].half_[h];
        [[unroll]] for (uint i = 0; i < CELL_STATES; ++i) befores[i] = before[i].half_[h];
        cell_forward(xs, rs, vs, befores, afters, kepts);
        [[unroll]] for (uint i = 0; i < CELL_STATES; ++i) after[i].half_[h] = afters[i];
        [[unroll]] for (uint g = 0; g < CELL_GATES; ++g) kept[g].half_[h] = kepts[g];
    }

    if (blocks > parts) barrier();
    STORE_STEP(window0, kStepHidden, k, kOutputBackwards, 1, 0, after[0])
#if CELL_STATES > 1
    STORE_STEP(window1, kStepCell, k * cell_step, kOutputBackwards, 1, 0, after[1])
#endif
    if (keep != 0)
        [[unroll]] for (uint g = 0; g < CELL_GATES; ++g)
            STORE_STEP(window2, kStepSaved, k, kOutputBackwards, CELL_GATES, slot_of(g), kept[g])
}

void main() {
    if (depth != 0) {
        touch(kStepProjected, push.p.step, kSourceBackwards, CELL_GATES);
        form_products(row_place(kStepMultiplied, max(push.p.step - 1, 0), kOutputBackwards, 1, first_row()),
                      directions * units * 4);
    }
    RUN_CELLS
}
