// Sums over rows. Each dispatch sums parts of the rows, and a second pass adds up the parts' sums. The order is always
// the same, so results are the same bit for bit.
#include "common/memory.glsl"
#include "portable/portable_abi.h"

WORKGROUP_SIZE(kElementwiseGroup)
SPECIALIZED(kReduceFactor, uint, has_factor, 0)
PUSH_CONSTANTS(ReducePush, p)

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
    for (uint row = begin; row < end; ++row) {
        Real value = load_tensor(0, in_, Stride(row) * p.in_row);
        if (has_factor != 0) value *= load_tensor(1, factor, Stride(row) * p.factor_row);
        sum += value;
    }
    store_tensor(2, p.out_, Stride(gl_WorkGroupID.z) * columns + column, sum);
}
