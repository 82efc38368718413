// One forward time step for all units, batch rows and directions: the recurrent product, then the cell.
#include "chosen_cell.glsl"
#ifndef CELL_KEEPS_HIDDEN
#define READS_HIDDEN
#endif
#include "portable/product.glsl"

void main() {
    Params p = Params(push.params);
    uint H = params_of(p).H, N = params_of(p).N;
    int k = push.step;
    Position at = position(H, N);
    uint unit = min(at.unit, H - 1);

    Stride weight_rows[CELL_GATES];
    for (uint g = 0; g < CELL_GATES; ++g) weight_rows[g] = Stride(slot_of(g) * H + unit) * params_of(p).weights_row;
    Operand operand = phase == 2 ? Operand(kScaledOperand, k, false, k)
                    : k == 0     ? Operand(kInitHidden, 0, true, k)
                                 : Operand(carried(kHidden, kCarryHidden), carried_step(kHidden, k - 1), true, k);
    Real sums[rows][CELL_GATES];
    product(p, at, operand, weight_rows, sums);

    // Each lane computes the cell of one row; a single lane computes all rows.
    for (uint first = 0; first < rows; first += lanes) {
        Real r[CELL_GATES];
        for (uint g = 0; g < CELL_GATES; ++g) r[g] = sums[first][g];
        for (uint i = 1; i < min(lanes, rows - first); ++i)
            if (at.lane == i)
                for (uint g = 0; g < CELL_GATES; ++g) r[g] = sums[first + i][g];
        uint n = at.row + first + at.lane;
        if (at.lane < rows - first && n < N && at.unit < H) {
            Element e = Element(at.direction, n, unit, k);
            CellResults made = form_cell(p, e, fetch_cell(p, e), r);
            if (phase == 1) store_view(p, kScaledOperand, at.direction, k, n, 0, unit, made.operand);
            store_cell(p, e, made);
        }
    }
}
