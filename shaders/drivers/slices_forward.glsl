// Steps forward of a slice.
#include "forward_cell.glsl"
#define PRODUCTS CELL_GATES
#include "slices.glsl"

void main() {
    Params p = Params(push.params);
    Place place = this_place();
    int first = push.step, end = int(min(push.step + push.steps, p.params.T));
    start_slice(p, place);

    Element e;
    CellInputs ahead[turns][cells];
    CellWeights weights;
    Real before[cells][CELL_STATES];
    [[unroll]] for (uint cell = 0; cell < cells; ++cell)
        if (find_cell(p, place, cell, first, e)) {
            weights = load_weights(p, e);
            load_before(p, e, before[cell]);
            set_operand(0, place, cell, e.j, before[cell][0] * load_mask(p, e.direction, first, e.n, e.j));
            [[unroll]] for (uint turn = 0; turn < turns; ++turn) {
                e.k = min(first + int(turn), end - 1);
                ahead[turn][cell] = load_step(p, e);
            }
        }
    barrier();

    for (int k = first; k < end; k += int(turns))
        [[unroll]] for (uint turn = 0; turn < turns; ++turn)
            if (k + int(turn) < end) {
                Real sums[cells][PRODUCTS];
                multiply(p, place, turn, sums);
                [[unroll]] for (uint cell = 0; cell < cells; ++cell)
                    if (find_cell(p, place, cell, k + int(turn), e)) {
                        CellInputs inputs = ahead[turn][cell];
                        add_weights(inputs, weights);
                        inputs.before = before[cell];
                        set_operand(1 - turn, place, cell, e.j, cell_step(p, e, inputs, sums[cell], before[cell]));
                        e.k = min(e.k + int(turns), end - 1);
                        ahead[turn][cell] = load_step(p, e);
                    }
                barrier();
            }
}
