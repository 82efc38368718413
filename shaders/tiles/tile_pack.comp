// Packs weights for the tiles of a step: see TilePackPush in tiles_abi.h.
#include "common/memory.glsl"
#include "tiles/tiles_abi.h"

WORKGROUP_SIZE(kElementwiseGroup)
PUSH_CONSTANTS(TilePackPush, p)

void main() {
    uint at = linear_group() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    uint count = p.tiles * p.padded_depth * p.columns;
    if (at >= count) return;
    uint column = at % p.columns, k = at / p.columns % p.padded_depth, tile = at / p.columns / p.padded_depth;
    uint unit = tile * p.units + column / p.products, slot = p.gate_order >> (4 * (column % p.products)) & 15;
    Real value = 0.0f;
    if (column < p.units * p.products && unit < p.H && k < p.depth)
        value = load_tensor(0, p.in_,
                            gl_WorkGroupID.z * p.in_direction + k * p.in_k + unit * p.in_unit + slot * p.in_slot);
    store(p.out_, Stride(gl_WorkGroupID.z) * count + at, value);
}
