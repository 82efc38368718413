// Copies rows between two tensors, whose rows may be further apart.
#include "common/memory.glsl"
#include "portable/portable_abi.h"

WORKGROUP_SIZE(kElementwiseGroup)
SPECIALIZED(kCopyVectors, uint, vectors, 0)
PUSH_CONSTANTS(CopyRowsPush, p)

void main() {
    uint at = linear_group() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    if (at >= p.count) return;
    uint row = at / p.width, column = at % p.width;
    Stride from = Stride(row) * p.in_row, to = Stride(row) * p.out_row;
    if (vectors != 0)
        store4_tensor(1, p.out_, to + column * 4, load4_tensor(0, p.in_, from + column * 4));
    else
        store_tensor(1, p.out_, to + column, load_tensor(0, p.in_, from + column));
}
