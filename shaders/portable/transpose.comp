// Transposes each matrix of a batch.
// Workgroups: x and y count groups of elements of the source; z is the batch.
#include "common/memory.glsl"
#include "portable/portable_abi.h"

WORKGROUP_SIZE(kElementwiseGroup)
PUSH_CONSTANTS(TransposePush, p)

void main() {
    uint at = linear_group() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    if (at >= p.rows * p.columns) return;
    Stride batch = Stride(gl_WorkGroupID.z) * p.rows * p.columns;
    uint row = at / p.columns, column = at % p.columns;
    store_tensor(1, p.out_, batch + Stride(column) * p.rows + row, load_tensor(0, p.in_, batch + at));
}
