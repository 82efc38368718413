// The learned vectors and biases of a cell.
#ifndef VKRNN_VECTORS_GLSL
#define VKRNN_VECTORS_GLSL
#include "chosen_cell.glsl"
#include "common/step.glsl"

// Several vectors are one per gate, in the gates' order in memory; a single one is in slot 0.
INLINE Loaded fetch_vector(Params p, Element e, uint i) {
    return fetch_view(p, kVectors, e.direction, 0, 0, CELL_VECTORS > 1 ? slot_of(i) : 0, e.j);
}
INLINE Loaded fetch_bias(Params p, Element e, uint gate) {
    return fetch_view(p, kBias, e.direction, 0, 0, slot_of(gate), e.j);
}

// The same, unless hoist_element has already fetched them.
#ifdef HOISTS_ELEMENT
Loaded hoisted_vectors[CELL_GATES], hoisted_bias[CELL_GATES];
#define LEARNED_VECTOR(P, E, I) (element_hoisted ? hoisted_vectors[I] : fetch_vector(P, E, I))
#define LEARNED_BIAS(P, E, G) (element_hoisted ? hoisted_bias[G] : fetch_bias(P, E, G))
#else
#define LEARNED_VECTOR(P, E, I) fetch_vector(P, E, I)
#define LEARNED_BIAS(P, E, G) fetch_bias(P, E, G)
#endif

#endif
