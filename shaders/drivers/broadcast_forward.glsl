// One time step forward of one direction, the recurrent product excepted: see broadcast_step.glsl.
#include "broadcast_step.glsl"

void main() {
    int k = push.p.step, previous = max(k - 1, 0);
    Lanes x[CELL_GATES], r[CELL_GATES], v[CELL_GATES], before[CELL_STATES], after[CELL_STATES], kept[CELL_GATES];
    [[unroll]] for (uint g = 0; g < CELL_GATES; ++g) {
        uint slot = slot_of(g);
        x[g] = load_two(place(kStepProjected, k, kSourceBackwards, CELL_GATES, slot));
        if ((reads & kReadsBias) != 0) {
            Lanes bias = load_vector(kStepBias, slot);
            x[g].half_[0] += bias.half_[0];
            x[g].half_[1] += bias.half_[1];
        }
        r[g] = load_product(CELL_GATES, slot);
    }
    [[unroll]] for (uint i = 0; i < CELL_GATES; ++i) v[i].half_[0] = v[i].half_[1] = 0.0;
    if ((reads & kReadsVectors) != 0)
        [[unroll]] for (uint i = 0; i < CELL_VECTORS; ++i) v[i] = load_vector(kStepVectors, CELL_VECTORS > 1 ? slot_of(i) : 0);
    before[0].half_[0] = before[0].half_[1] = 0.0;
#ifdef CELL_KEEPS_HIDDEN
    before[0] = load_two(place(kStepPreviousHidden, previous, kOutputBackwards, 1, 0));
#endif
#if CELL_STATES > 1
    int cell_step = (orders & kCellIsState) != 0 ? 0 : 1;
    before[1] = load_two(place(kStepPreviousCell, previous * cell_step, kOutputBackwards, 1, 0));
#endif

    [[unroll]] for (uint h = 0; h < 2; ++h) {
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

    store_two(place(kStepHidden, k, kOutputBackwards, 1, 0), after[0]);
#if CELL_STATES > 1
    store_two(place(kStepCell, k * cell_step, kOutputBackwards, 1, 0), after[1]);
#endif
    if (keep != 0)
        [[unroll]] for (uint g = 0; g < CELL_GATES; ++g)
            store_two(place(kStepSaved, k, kOutputBackwards, CELL_GATES, slot_of(g)), kept[g]);
}
