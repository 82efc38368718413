// One time step forward for all units, batch rows and directions: the recurrent product, then the cell.
#define PRODUCTS CELL_GATES
#include "step.glsl"
#ifdef CELL_FIRST_GATES
const uint first_product = phase == 2 ? CELL_FIRST_GATES : 0;
const uint end_product = phase == 1 ? CELL_FIRST_GATES : CELL_GATES;
#else
const uint first_product = 0;
const uint end_product = CELL_GATES;
#endif
#include "product.glsl"

void clear_step(Params p, uint d, uint n, uint j, int k) {
    if (phase == 1) return;
    clear_view(p, kHidden, d, k, n, 0, j);
#if CELL_STATES > 1
    clear_view(p, kCell, d, k, n, 0, j);
#endif
    if (keep != 0)
        for (uint g = 0; g < CELL_GATES; ++g) clear_view(p, kSaved, d, k, n, slot_of(g), j);
}

void cell_step(Params p, uint d, uint n, uint j, int k, const Real r[CELL_GATES]) {
    if (has_ended(p, n, k)) {
        clear_step(p, d, n, j, k);
        return;
    }
    Real x[CELL_GATES], v[CELL_GATES], kept[CELL_GATES], before[CELL_STATES], after[CELL_STATES];
    for (uint g = 0; g < CELL_GATES; ++g) {
        uint slot = slot_of(g);
        x[g] = load_view(p, kProjected, d, k, n, slot, j) + load_view(p, kBias, d, 0, 0, slot, j);
        v[g] = 0.0;
    }
    // A vector per gate stands in the gates' order; a single one is its own slot 0.
    for (uint i = 0; i < CELL_VECTORS; ++i) v[i] = load_view(p, kVectors, d, 0, 0, CELL_VECTORS > 1 ? slot_of(i) : 0, j);
    before[0] = load_previous(p, kHidden, kInitHidden, d, k, n, j);
#if CELL_STATES > 1
    before[1] = load_previous(p, kCell, kInitCell, d, k, n, j);
#endif

#ifdef CELL_FIRST_GATES
    if (phase == 1) {
        Real factor[1];
        cell_forward_first(x, r, kept, factor);
        for (uint g = 0; g < CELL_FIRST_GATES; ++g) store_view(p, kSaved, d, k, n, slot_of(g), j, kept[g]);
        store_view(p, kOperand, d, k, n, 0, j, before[0] * load_mask(p, d, k, n, j) * factor[0]);
        return;
    }
    if (phase == 2) {
        for (uint g = 0; g < CELL_FIRST_GATES; ++g) kept[g] = load_view(p, kSaved, d, k, n, slot_of(g), j);
        cell_forward_second(x, r, before, after, kept);
    } else
#endif
        cell_forward(x, r, v, before, after, kept);

    store_view(p, kHidden, d, k, n, 0, j, after[0]);
#if CELL_STATES > 1
    store_view(p, kCell, d, k, n, 0, j, after[1]);
#endif
    if (keep != 0)
        for (uint g = first_product; g < CELL_GATES; ++g) store_view(p, kSaved, d, k, n, slot_of(g), j, kept[g]);
}

void main() {
    Params p = Params(push.params);
    uint H = p.params.H, N = p.params.N;
    int k = push.step;
    Position at = position(H, N);
    uint unit = min(at.unit, H - 1);

    Stride weight_rows[CELL_GATES];
    for (uint g = 0; g < CELL_GATES; ++g) weight_rows[g] = Stride(slot_of(g) * H + unit) * p.params.weights_row;
    Operand operand = phase == 2 ? Operand(kOperand, k, false, k)
                    : k == 0     ? Operand(kInitHidden, 0, has_mask != 0, k)
                                 : Operand(kHidden, k - 1, has_mask != 0, k);
    Real sums[rows][CELL_GATES];
    product(p, at, operand, weight_rows, sums);

    // Each lane takes a row of its own; with one lane, that lane takes all.
    for (uint first = 0; first < rows; first += lanes) {
        Real r[CELL_GATES];
        for (uint g = 0; g < CELL_GATES; ++g) r[g] = sums[first][g];
        for (uint i = 1; i < min(lanes, rows - first); ++i)
            if (at.lane == i)
                for (uint g = 0; g < CELL_GATES; ++g) r[g] = sums[first + i][g];
        uint n = at.row + first + at.lane;
        if (at.lane < rows - first && n < N && at.unit < H) cell_step(p, at.direction, n, unit, k, r);
    }
}
