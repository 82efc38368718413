// h after a step, from the training state if need be, and h before a step and its reset. After a blend, h does not
// follow from the training state.
#ifndef VKRNN_HIDDEN_BEFORE_GLSL
#define VKRNN_HIDDEN_BEFORE_GLSL
#include "chosen_cell.glsl"
#include "common/step.glsl"

INLINE Real hidden_after(Params p, uint d, uint n, uint j, int k) {
    Real hidden;
#ifdef CELL_KEEPS_HIDDEN
    hidden = load_view(p, kHidden, d, k, n, 0, j);
#else
    if (blends_hidden != 0 || blends_cell != 0) {
        hidden = load_view(p, kHidden, d, k, n, 0, j);
    } else {
        Real kept[CELL_GATES], after[CELL_STATES];
        for (uint g = 0; g < CELL_GATES; ++g) kept[g] = load_view(p, kTrainingState, d, k, n, slot_of(g), j);
        after[0] = 0.0f;
        for (uint s = 1; s < CELL_STATES; ++s) after[s] = load_view(p, kCell, d, k, n, s - 1, j);
        hidden = cell_hidden(kept, after);
    }
#endif
    return hidden;
}

INLINE Real hidden_before(Params p, uint d, uint n, uint j, int k) {
    return k == 0 ? load_view(p, kInitHidden, d, 0, n, 0, j) : hidden_after(p, d, n, j, k - 1);
}

#endif
