// Steps backward of a slice. Step -1 only takes what step 0 hands down: the gradient of the initial state.
#include "backward_cell.glsl"
#define PRODUCTS 1
#include "slices.glsl"

layout(constant_id = kToInitial) const uint to_initial = 0;

void main() {
    Params p = Params(push.params);
    Place place = this_place();
    int first = push.step, end = max(first - int(push.steps), -1);   // the step before the last one made
    if (end < 0 && to_initial != 0) end = -2;
    start_slice(p, place);

    Element e;
    CellInputs ahead[turns][cells];
    Real v[CELL_GATES], last[cells][CELL_STATES], carry[cells][CELL_STATES];
    bool from_later = first + 1 < int(p.params.T);   // a dispatch before this one left the deltas of step first + 1
    [[unroll]] for (uint cell = 0; cell < cells; ++cell)
        if (find_cell(p, place, cell, first, e)) {
            load_vectors(p, e, v);
            load_last(p, e, last[cell]);
            carry[cell] = last[cell];
            if (from_later) {
                load_carry(p, e, carry[cell]);
                if (!has_ended(p, e.n, first + 1))
                    for (uint slot = 0; slot < CELL_GATES; ++slot)
                        set_operand(0, place, cell, slot * p.params.H + e.j,
                                    load_view(p, kRecurrentDelta, e.direction, first + 1, e.n, slot, e.j));
            }
            [[unroll]] for (uint turn = 0; turn < turns; ++turn) {
                e.k = max(first - int(turn), end + 1);
                ahead[turn][cell] = load_step(p, e);
            }
        }
    barrier();

    for (int k = first; k > end; k -= int(turns))
        [[unroll]] for (uint turn = 0; turn < turns; ++turn)
            if (k - int(turn) > end) {
                Real through[cells][PRODUCTS];
                multiply(p, place, turn, through);
                [[unroll]] for (uint cell = 0; cell < cells; ++cell)
                    if (find_cell(p, place, cell, k - int(turn), e)) {
                        CellInputs inputs = ahead[turn][cell];
                        inputs.v = v;
                        inputs.up = carry[cell];
                        if (inputs.last) inputs.up = last[cell];
                        Real dr[CELL_GATES];
                        cell_step(p, e, inputs, through[cell][0], dr, carry[cell]);
                        [[unroll]] for (uint g = 0; g < CELL_GATES; ++g)
                            set_operand(1 - turn, place, cell, slot_of(g) * p.params.H + e.j, dr[g]);
                        e.k = max(e.k - int(turns), end + 1);
                        ahead[turn][cell] = load_step(p, e);
                    }
                barrier();
            }

    [[unroll]] for (uint cell = 0; cell < cells; ++cell)
        if (find_cell(p, place, cell, end + 1, e)) store_carry(p, e, carry[cell]);
}
