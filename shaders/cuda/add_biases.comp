// Adds a layer's two biases, or the first rows of them.
#include "common/memory.glsl"
#include "cuda/biases_abi.h"

WORKGROUP_SIZE(kElementwiseGroup)
PUSH_CONSTANTS(AddBiasesPush, p)

void main() {
    uint at = gl_WorkGroupID.x * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    if (at >= p.count) return;
    Real sum = load_tensor(0, p.first, at);
    if (at < p.added) sum += load_tensor(1, p.second, at);
    store_tensor(2, p.out_, at, sum);
}
