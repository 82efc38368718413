// Recomputes the operand of each step's recurrent product, h[k-1] * m[k] for each mask m, from the training state, and
// stores it in source order for the gradients of the weights. For peephole weights it also stores c[k-1], and c[k] if
// one of them weighs c[k]. Runs before the backward loop, for all steps at once.
// Workgroups: x and y count (batch row of a step, unit block), unit blocks fastest; z is the direction.
#include "common/hidden_before.glsl"

#if CELL_STATES == 2
// Returns the cell state that a step computes from `before`. After a blend, the stored one is another.
INLINE Real new_cell(Params p, uint d, uint n, uint j, int k, Real cell_before) {
    Real kept[CELL_GATES], before[CELL_STATES], cell;
    if (blends_cell == 0) {
        cell = load_view(p, kCell, d, k, n, 0, j);
    } else {
        for (uint g = 0; g < CELL_GATES; ++g) kept[g] = load_view(p, kTrainingState, d, k, n, slot_of(g), j);
        before[0] = 0.0f;
        before[1] = cell_before;
        cell = cell_next(kept, before);
    }
    return cell;
}
#endif

CONSTANT uint operand_slots = masks_gates ? CELL_GATES : 1;

INLINE void recompute(Params p, uint d, uint n, uint j, int k) {
    if (has_ended(p, n, k)) {
        for (uint s = 0; s < operand_slots; ++s) clear_view(p, kOperand, d, k, n, s, j);
#ifdef CELL_SCALE
        if (scales_product == 0) clear_view(p, kScaledOperand, d, k, n, 0, j);
#endif
#if CELL_STATES > 1
        for (uint s = 0; s < keep; ++s) clear_view(p, kPreviousCell, d, k, n, s, j);
#endif
        return;
    }

    Real hidden = hidden_before(p, d, n, j, k);
    hidden = load_reset(p, d, k, n, 0, j, hidden);
    for (uint s = 0; s < operand_slots; ++s)
        store_view(p, kOperand, d, k, n, s, j, hidden * load_slot_mask(p, d, k, n, s, j));
#ifdef CELL_SCALE
    if (scales_product == 0) {
        Real scale = load_view(p, kTrainingState, d, k, n, slot_of(CELL_SCALE), j);
        Real operand = hidden * load_slot_mask(p, d, k, n, slot_of(CELL_CANDIDATE), j);
        store_view(p, kScaledOperand, d, k, n, 0, j, operand * scale);
    }
#endif
#if CELL_STATES > 1
    if (keep != 0) {
        Real cell = load_previous(p, kCell, kInitCell, d, k, n, 0, j);
        cell = load_reset(p, d, k, n, 1, j, cell);
        store_view(p, kPreviousCell, d, k, n, 0, j, cell);
#if CELL_STATES == 2
        if (keep == 2) store_view(p, kPreviousCell, d, k, n, 1, j, new_cell(p, d, n, j, k, cell));
#endif
    }
#endif
}

void main() {
    Params p = Params(push.params);
    uint H = params_of(p).H, N = params_of(p).N;
    uint blocks = (H + gl_WorkGroupSize.x - 1) / gl_WorkGroupSize.x;
    uint group = linear_group();
    uint j = group % blocks * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    uint row = group / blocks;
    if (j < H && row / N < params_of(p).T) recompute(p, gl_WorkGroupID.z, row % N, j, int(row / N));
}
