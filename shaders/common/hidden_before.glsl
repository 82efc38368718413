// h before a step and its reset: the initial state, or h of the step before, from the training state if need be. After a
// blend, h does not follow from the training state.
#ifndef VKRNN_HIDDEN_BEFORE_GLSL
#define VKRNN_HIDDEN_BEFORE_GLSL
#include "chosen_cell.glsl"
#include "common/step.glsl"

INLINE Real hidden_before(Params p, uint d, uint n, uint j, int k) {
    Real hidden;
#ifdef CELL_KEEPS_HIDDEN
    hidden = load_previous(p, kHidden, kInitHidden, d, k, n, 0, j);
#else
    if (blends_hidden != 0 || blends_cell != 0) {
        hidden = load_previous(p, kHidden, kInitHidden, d, k, n, 0, j);
    } else if (k == 0) {
        hidden = load_view(p, kInitHidden, d, 0, n, 0, j);
    } else {
        Real kept[CELL_GATES], after[CELL_STATES];
        for (uint g = 0; g < CELL_GATES; ++g) kept[g] = load_view(p, kTrainingState, d, k - 1, n, slot_of(g), j);
        after[0] = 0.0f;
        for (uint s = 1; s < CELL_STATES; ++s) after[s] = load_view(p, kCell, d, k - 1, n, s - 1, j);
        hidden = cell_hidden(kept, after);
    }
#endif
    return hidden;
}

#endif
