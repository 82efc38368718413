// Copies rows between two tensors, whose rows may be further apart.
#include "common/memory.glsl"
#include "portable/portable_abi.h"

WORKGROUP_SIZE(kElementwiseGroup)
PUSH_CONSTANTS(CopyRowsPush, p)

void main() {
    uint at = linear_group() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    if (at >= p.count) return;
    uint row = at / p.width, column = at % p.width;
    store_tensor(1, p.out_, Stride(row) * p.out_row + column, load_tensor(0, p.in_, Stride(row) * p.in_row + column));
}
