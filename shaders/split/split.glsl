// The cells of one time step, whose recurrent product another dispatch has computed. Stores the operand of the next
// product.
// Workgroups: x and y count (unit block, batch row), unit blocks fastest; z is the direction.
#ifndef VKRNN_SPLIT_GLSL
#define VKRNN_SPLIT_GLSL
#include "common/cell_step.glsl"
#include "split/split_abi.h"

SPECIALIZED(kSplitUnits, uint, block_units, 1)

INLINE uint unit_blocks(Params p) { return (params_of(p).H + block_units - 1) / block_units; }

// Finds the cell of this invocation at a step. Returns false if there is none.
INLINE bool find_cell(Params p, OUT(Element) e) {
    uint group = linear_group(), local = gl_LocalInvocationID.x;
    e = Element(gl_WorkGroupID.z, group / unit_blocks(p), group % unit_blocks(p) * block_units + local, push.step);
    return e.n < params_of(p).N && local < block_units && e.j < params_of(p).H;
}

#endif
