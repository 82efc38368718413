// Prepares a time loop. Stores zeros for the operand's units past the last one, in all regions. A tagged operand gets
// zeros for all units and rows instead, with a tag that no step waits for. If the loop gives up, the steps that follow
// read the same memory without tags, in another order, where a row's words may have been another row's. For a forward
// loop, also stores the operand of the first step.
// Workgroups: x and y count groups of (row, slot, padded unit), units fastest; z is the direction or part. A tagged
// operand has the rows of whole tiles.
#include "matrices/matrix_tiles.glsl"

SPECIALIZED(kMatrixConstants, uint, regions, 2)
SPECIALIZED(kMatrixConstants + 1u, uint, forward, 1)

void main() {
    Params p = Params(push.params);
    uint at = linear_group() * gl_WorkGroupSize.x + gl_LocalInvocationID.x, d = gl_WorkGroupID.z;
    uint padded = run_blocks(p) * side, slots = k_blocks(p) / run_blocks(p);
    uint j = at % padded, slot = at / padded % slots, n = at / padded / slots;
    uint rows = tagged != 0 ? (params_of(p).N + tile_rows - 1) / tile_rows * tile_rows : params_of(p).N;
    if (n >= rows) return;
    bool padding = j >= params_of(p).H || n >= params_of(p).N;
    for (uint region = 0; region < regions; ++region) {
        // The initial tag of a region differs from that of the first step stored in it.
        int first_step = forward != 0 ? int(region) : int(params_of(p).T) - 1 - int(region + params_of(p).T - 1 & 1);
        tag_stored = 1 - tag_of(first_step);
        if (padding || tagged != 0) put_operand(operand_address(p, region_address(p, d, region), n, slot, j), 0.0f);
        uint scales = uint(step_stride(p, kMatrixScales, d));
        if (forward == 0 && tagged != 0 && at < scales)
            Words(own_address(p, kMatrixScales, d) + Address(region * scales + at) * 4).value = tag_stored;
    }
    if (forward != 0 && !padding) {
        float value = first_operand(p, d, n, j);
        uint state = at_least_1(loop_absmax(p, kAbsmaxState));
        float mask = bound(at_least_1(loop_absmax(p, kAbsmaxMask)));
        tag_stored = tag_of(0);
        put_operand(operand_address(p, region_address(p, d, 0), n, slot, j), value * (scale_down(state) / mask));
    }
}
