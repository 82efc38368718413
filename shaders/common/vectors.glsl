// The learned vectors of a cell.
#ifndef VKRNN_VECTORS_GLSL
#define VKRNN_VECTORS_GLSL
#include "chosen_cell.glsl"
#include "common/step.glsl"

// Several vectors are one per gate, in the gates' order in memory; a single one is in slot 0.
INLINE Real load_vector(Params p, Element e, uint i) {
    return load_view(p, kVectors, e.direction, 0, 0, CELL_VECTORS > 1 ? slot_of(i) : 0, e.j);
}

// The same, unless find_element has already loaded it.
#ifdef FINDS_ELEMENT
Real found_vectors[CELL_GATES];
#define FIND_VECTOR(P, E, I) (element_found ? found_vectors[I] : load_vector(P, E, I))
#else
#define FIND_VECTOR(P, E, I) load_vector(P, E, I)
#endif

#endif
