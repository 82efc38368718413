// What a kernel that makes many steps of one element finds beforehand; see element_found. A cell's file is included before.
#ifndef VKRNN_FOUND_ELEMENT_GLSL
#define VKRNN_FOUND_ELEMENT_GLSL
#include "step.glsl"

Real found_vectors[CELL_GATES];

// A vector per gate stands in the gates' order; a single one is its own slot 0.
Real load_vector(Params p, Element e, uint i) {
    return load_view(p, kVectors, e.direction, 0, 0, CELL_VECTORS > 1 ? slot_of(i) : 0, e.j);
}

// Finds what is the same in all steps. Where the views of a forward step are takes many registers.
void find_element(Params p, Element e, const bool views) {
    found_length = length_of(p, e.n);
    [[unroll]] for (uint i = 0; i < CELL_VECTORS; ++i) found_vectors[i] = load_vector(p, e, i);
    if (views) find_views(p, e);
}

#endif
