// Sums over rows. Each dispatch sums parts of the rows, and a second pass adds up the parts' sums. The order is always
// the same, so results are the same bit for bit.
#include "common/memory.glsl"
#include "portable/portable_abi.h"

WORKGROUP_SIZE(kElementwiseGroup)
SPECIALIZED(kReduceFactor, uint, has_factor, 0)
PUSH_CONSTANTS(ReducePush, p)

// Rows that are loaded before the first of them is added.
CONSTANT uint kAhead = 16u;

void main() {
    uint columns = p.directions * p.gates * p.width;
    uint column = linear_group() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    if (column >= columns) return;
    uint unit = column % p.width, gate = column / p.width % p.gates, direction = column / (p.width * p.gates);
    Address in_ = tensor_element(0, p.in_, Stride(direction) * p.in_direction + Stride(gate) * p.in_gate + unit);
    Address factor =
        tensor_element(1, p.factor, Stride(direction) * p.factor_direction + Stride(gate) * p.factor_gate + unit);
    uint begin = gl_WorkGroupID.z * p.part;
    uint end = min(p.rows, begin + p.part);
    Real sum = 0.0f;
    for (uint row = begin; row < end; row += kAhead) {
        Real values[kAhead];
        UNROLL for (uint i = 0u; i < kAhead; ++i) {
            uint at = min(row + i, end - 1u);
            values[i] = load_tensor(0, in_, Stride(at) * p.in_row);
            if (has_factor != 0) values[i] *= load_tensor(1, factor, Stride(at) * p.factor_row);
        }
        UNROLL for (uint i = 0u; i < kAhead; ++i)
            if (row + i < end) sum += values[i];
    }
    store_tensor(2, p.out_, Stride(gl_WorkGroupID.z) * columns + column, sum);
}
