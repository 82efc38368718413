// Stores the operand of the first step's product before a forward loop of tiles.
// Workgroups: x and y count groups of (unit, row), rows fastest; z is the direction or part.
#include "common/step.glsl"
#include "tiles/tiles_abi.h"

void main() {
    Params p = Params(push.params);
    uint at = linear_group() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    uint n = at % params_of(p).N, j = at / params_of(p).N, d = gl_WorkGroupID.z;
    if (j >= params_of(p).H) return;
    store(unit_address(p, kTileOperand, own_address(p, kTileOperand, d), 0, j), n, first_operand(p, d, n, j));
}
