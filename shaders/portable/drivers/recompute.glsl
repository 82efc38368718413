// Recomputes the operand of each step's recurrent product, h[k-1] * m[k] for each mask m, from the training state, and
// stores it in source order for the gradients of the weights. For peephole weights it also stores c[k-1], and c[k] if
// one of them weighs c[k]. Runs before the backward loop, for all steps at once.
// Workgroups: x and y count (kRecomputeRows batch rows of steps, unit block), unit blocks fastest; z is the direction.
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

INLINE void clear_operands(Params p, uint d, uint n, uint j, int k) {
    for (uint s = 0; s < operand_slots; ++s) clear_view(p, kOperand, d, k, n, s, j);
#ifdef CELL_SCALE
    if (scales_product == 0) clear_view(p, kScaledOperand, d, k, n, 0, j);
#endif
#if CELL_STATES > 1
    for (uint s = 0; s < keep; ++s) clear_view(p, kPreviousCell, d, k, n, s, j);
#endif
}

INLINE void store_operands(Params p, uint d, uint n, uint j, int k, Real before) {
    Real hidden = load_reset(p, d, k, n, 0, j, before);
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
    uint H = params_of(p).H, N = params_of(p).N, rows = params_of(p).T * N;
    uint blocks = (H + gl_WorkGroupSize.x - 1) / gl_WorkGroupSize.x;
    uint group = linear_group();
    uint j = group % blocks * gl_WorkGroupSize.x + gl_LocalInvocationID.x, d = gl_WorkGroupID.z;
    uint first = group / blocks * kRecomputeRows;
    if (j >= H) return;
    if (has_lengths == 0 && first >= N && first + kRecomputeRows <= rows) {
        // All loads come before the first store, so that they do not wait for each other.
        Real before[kRecomputeRows];
        UNROLL for (uint i = 0; i < kRecomputeRows; ++i)
            before[i] = hidden_after(p, d, (first + i) % N, j, int((first + i) / N) - 1);
        UNROLL for (uint i = 0; i < kRecomputeRows; ++i)
            store_operands(p, d, (first + i) % N, j, int((first + i) / N), before[i]);
        return;
    }
    for (uint row = first; row < min(first + kRecomputeRows, rows); ++row) {
        uint n = row % N;
        int k = int(row / N);
        if (has_ended(p, n, k))
            clear_operands(p, d, n, j, k);
        else
            store_operands(p, d, n, j, k, hidden_before(p, d, n, j, k));
    }
}
