// Computes once what is the same in all steps of an element: see HOISTS_ELEMENT in common/step.glsl.
#ifndef VKRNN_HOISTED_ELEMENT_GLSL
#define VKRNN_HOISTED_ELEMENT_GLSL
#include "common/vectors.glsl"

// Computes the addresses and distances of the views of a forward step for an element.
INLINE void hoist_views(Params p, Element e) {
    UNROLL for (uint view = 0; view < kOwnView; ++view)
        if (is_hoisted(view)) {
            hoisted_address[view] = unit_address(p, view, row_address(p, view, e.direction, 0, e.n), 0, e.j);
            hoisted_step[view] = step_bytes(p, view, e.direction);
            hoisted_slot[view] = slot_bytes(p, view);
        }
}

// Computes what is the same in all steps. `views` includes the addresses of a forward step's views, which take many
// registers.
INLINE void hoist_element(Params p, Element e, const bool views) {
    hoisted_length = length_of(p, e.n);
    UNROLL for (uint i = 0; i < CELL_VECTORS; ++i) hoisted_vectors[i] = fetch_vector(p, e, i);
#ifndef BACKWARD
    UNROLL for (uint g = first_product; g < end_product; ++g) hoisted_bias[g] = fetch_bias(p, e, g);
#endif
    if (views) hoist_views(p, e);
}

#endif
