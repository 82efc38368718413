// Prepares a loop: stores zeros for the operand's units past the last one, in all regions, and for a forward loop what
// the first step multiplies, h0 * m[0]. Workgroups: x, y number (row, slot, padded unit) in groups, units fastest; z is the
// direction.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "matrices/tiles.glsl"

layout(constant_id = kMatrixConstants) const uint regions = 2;
layout(constant_id = kMatrixConstants + 1u) const uint forward = 1;

void main() {
    Params p = Params(push.params);
    uint at = linear_group() * gl_WorkGroupSize.x + gl_LocalInvocationID.x, d = gl_WorkGroupID.z;
    uint padded = run_blocks(p) * side, slots = k_blocks(p) / run_blocks(p);
    uint j = at % padded, slot = at / padded % slots, n = at / padded / slots;
    if (n >= p.params.N) return;
    if (j >= p.params.H) {
        for (uint region = 0; region < regions; ++region)
            put_operand(p, region_address(p, d, region), n, slot, j, 0.0);
    } else if (forward != 0) {
        float value = load_view(p, kInitHidden, d, 0, n, 0, j) * load_mask(p, d, 0, n, j);
        uint state = at_least_1(largest(p, kLargestState));
        float mask = bound(at_least_1(largest(p, kLargestMask)));
        put_operand(p, region_address(p, d, 0), n, slot, j, value * (scale_down(state) / mask));
    }
}
