// Forward: see split.glsl. Step -1 only stores the operand of step 0.
#include "split/split.glsl"

void main() {
    Params p = Params(push.params);
    Element e;
    if (!find_cell(p, e)) return;
    Real operand;
    if (e.k < 0) {
        operand = first_operand(p, e.direction, e.n, e.j);
    } else {
        Real r[CELL_GATES];
        for (uint g = 0; g < CELL_GATES; ++g)
            r[g] = g >= first_product && g < end_product
                       ? load_view(p, kStepProduct, e.direction, 0, e.n, slot_of(g), e.j)
                       : 0.0f;
        CellResults made = form_cell(p, e, fetch_cell(p, e), r);
        store_cell(p, e, made);
        operand = made.operand;
    }
    store_view(p, kStepOperand, e.direction, 0, e.n, 0, e.j, operand);
}
