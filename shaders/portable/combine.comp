// Multiplies or adds two tensors element by element.
#include "common/memory.glsl"
#include "portable/portable_abi.h"

WORKGROUP_SIZE(kElementwiseGroup)
SPECIALIZED(kCombineAdds, uint, adds, 0)
PUSH_CONSTANTS(CombinePush, p)

void main() {
    uint at = linear_group() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    if (at >= p.count) return;
    Real a = load_tensor(0, p.a, Stride(at));
    if (at % p.period < p.limit) {
        Real b = load_tensor(1, p.b, Stride(at));
        a = adds != 0 ? a + b : a * b;
    }
    store_tensor(2, p.out_, Stride(at), a);
}
