// Values that a kernel computes once if it runs many steps of the same element; see element_found. Include a cell's
// file first.
#ifndef VKRNN_FOUND_ELEMENT_GLSL
#define VKRNN_FOUND_ELEMENT_GLSL
#include "step.glsl"

Real found_vectors[CELL_GATES];

// Several vectors are one per gate, in the gates' order in memory; a single one is in slot 0.
Real load_vector(Params p, Element e, uint i) {
    return load_view(p, kVectors, e.direction, 0, 0, CELL_VECTORS > 1 ? slot_of(i) : 0, e.j);
}

// Computes what is the same in all steps. `views` includes the addresses of a forward step's views, which take many
// registers.
void find_element(Params p, Element e, const bool views) {
    found_length = length_of(p, e.n);
    [[unroll]] for (uint i = 0; i < CELL_VECTORS; ++i) found_vectors[i] = load_vector(p, e, i);
    if (views) find_views(p, e);
}

#endif
