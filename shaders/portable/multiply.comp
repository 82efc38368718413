// Multiplies two tensors element by element.
#include "common/memory.glsl"
#include "portable/portable_abi.h"

WORKGROUP_SIZE(kElementwiseGroup)
PUSH_CONSTANTS(MultiplyPush, p)

void main() {
    uint at = linear_group() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    if (at >= p.count) return;
    store_tensor(2, p.out_, Stride(at), load_tensor(0, p.a, Stride(at)) * load_tensor(1, p.b, Stride(at)));
}
