// One time step backward for all units, batch rows and directions: the gradient that the later step hands down through the
// recurrent product, then the cell's own. Step -1 only takes what step 0 hands down: the gradient of the initial state.
#define PRODUCTS 1
const uint first_product = 0;
const uint end_product = 1;
#include "product.glsl"

#ifdef CELL_FIRST_GATES
// Second phase: what comes through the reset gate.
void cell_second(Params p, uint d, uint n, uint j, int k, Real du) {
    if (has_ended(p, n, k)) return;
    Real kept[CELL_GATES], carry[CELL_STATES];
    for (uint g = 0; g < CELL_GATES; ++g) kept[g] = load_view(p, kSaved, d, k, n, slot_of(g), j);
    carry[0] = load_view(p, kCarryHidden, d, 0, n, 0, j);
    Real dx_reset[1];
    cell_backward_second(kept, du, load_view(p, kOperand, d, k, n, 0, j), load_mask(p, d, k, n, j), dx_reset, carry);
    store_view(p, kDelta, d, k, n, slot_of(CELL_RESET), j, dx_reset[0]);
    store_view(p, kCarryHidden, d, 0, n, 0, j, carry[0]);
}
#endif

void cell_step(Params p, uint d, uint n, uint j, int k, Real through) {
    if (has_ended(p, n, k)) {
        for (uint g = 0; g < CELL_GATES; ++g) {
            clear_view(p, kDelta, d, k, n, slot_of(g), j);
#ifdef CELL_CANDIDATE
            if (reset_after != 0) clear_view(p, kRecurrentDelta, d, k, n, slot_of(g), j);
#endif
        }
        return;
    }
    Real up[CELL_STATES];
    bool last = k == length_of(p, n) - 1;
    up[0] = last ? load_view(p, kLastHidden, d, 0, n, 0, j)
                 : load_view(p, kCarryHidden, d, 0, n, 0, j) + through * load_mask(p, d, k + 1, n, j);
    if (k < 0) {
        store_view(p, kCarryHidden, d, 0, n, 0, j, up[0]);
        return;
    }
    up[0] += load_view(p, kUpstream, d, k, n, 0, j);
#if CELL_STATES > 1
    up[1] = last ? load_view(p, kLastCell, d, 0, n, 0, j) : load_view(p, kCarryCell, d, 0, n, 0, j);
#endif

    Real kept[CELL_GATES], v[CELL_GATES], before[CELL_STATES], after[CELL_STATES];
    for (uint g = 0; g < CELL_GATES; ++g) {
        kept[g] = load_view(p, kSaved, d, k, n, slot_of(g), j);
        v[g] = 0.0;
    }
    for (uint i = 0; i < CELL_VECTORS; ++i) v[i] = load_view(p, kVectors, d, 0, 0, CELL_VECTORS > 1 ? slot_of(i) : 0, j);
    before[0] = 0.0;
    after[0] = 0.0;
    Real q = 0.0;
#ifdef CELL_KEEPS_HIDDEN
    before[0] = load_previous(p, kHidden, kInitHidden, d, k, n, j);
#endif
#ifdef CELL_CANDIDATE
    if (reset_after != 0) q = load_view(p, kProduct, d, k, n, 0, j);
#endif
#if CELL_STATES > 1
    before[1] = load_previous(p, kCell, kInitCell, d, k, n, j);
    after[1] = load_view(p, kCell, d, k, n, 0, j);
#endif

    Real dx[CELL_GATES], dr[CELL_GATES], carry[CELL_STATES];
    cell_backward(kept, v, before, after, q, up, dx, dr, carry);
    for (uint g = 0; g < CELL_GATES; ++g) {
        store_view(p, kDelta, d, k, n, slot_of(g), j, dx[g]);
#ifdef CELL_CANDIDATE
        if (reset_after != 0) store_view(p, kRecurrentDelta, d, k, n, slot_of(g), j, dr[g]);
#endif
    }
    store_view(p, kCarryHidden, d, 0, n, 0, j, carry[0]);
#if CELL_STATES > 1
    store_view(p, kCarryCell, d, 0, n, 0, j, carry[1]);
#endif
}

void main() {
    Params p = Params(push.params);
    uint H = p.params.H, N = p.params.N;
    int k = push.step;
    Position at = position(H, N);
    uint unit = min(at.unit, H - 1);

    // The weights are transposed: a row is what one unit feeds. At the last step nothing is handed down.
    Stride weight_rows[1] = Stride[1](Stride(unit) * p.params.weights_row);
    Real sums[rows][1];
    if (phase == 2 || k + 1 < int(p.params.T))
        product(p, at, Operand(kRecurrentDelta, phase == 2 ? k : k + 1, false, 0), weight_rows, sums);
    else
        for (uint r = 0; r < rows; ++r) sums[r][0] = 0.0;

    for (uint first = 0; first < rows; first += lanes) {
        Real through = sums[first][0];
        for (uint i = 1; i < min(lanes, rows - first); ++i)
            if (at.lane == i) through = sums[first + i][0];
        uint n = at.row + first + at.lane;
        if (at.lane < rows - first && n < N && at.unit < H) {
#ifdef CELL_FIRST_GATES
            if (phase == 2) {
                cell_second(p, at.direction, n, unit, k, through);
                continue;
            }
#endif
            cell_step(p, at.direction, n, unit, k, through);
        }
    }
}
