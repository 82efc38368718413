// Packs weights for slices: see SlicePackPush in slices_abi.h.
#include "common/memory.glsl"
#include "slices/slices_abi.h"

WORKGROUP_SIZE(kElementwiseGroup)
PUSH_CONSTANTS(SlicePackPush, p)

void main() {
    uint at = linear_group() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    uint count = p.runs * p.units * p.products * p.invocations * 4;
    if (at >= count) return;
    uint invocation = at / 4 % p.invocations, index = at / 4 / p.invocations;
    uint run = index / p.products / p.units;
    uint k = (run * p.lanes + invocation % p.lanes) * 4 + at % 4;
    uint unit = invocation / p.lanes * p.units + index / p.products % p.units;
    uint slot = p.gate_order >> (4 * (index % p.products)) & 15;
    uint part = gl_WorkGroupID.z, head = unit / p.head_units;
    Real value = 0.0f;
    if (unit < p.H && k < p.depth)
        value = load_tensor(0, p.in_,
                            part / p.parts * p.in_direction +
                                (part % p.parts * (p.H / p.head_units) + head) * p.in_head +
                                k / p.head_units * p.in_k_slot + k % p.head_units * p.in_k +
                                (unit - head * p.head_units) * p.in_unit + slot * p.in_slot);
    store(p.out_, Stride(part) * count + at, value);
}
