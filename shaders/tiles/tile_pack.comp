// Packs weights for the tiles of a step: see TilePackPush in tiles_abi.h.
#include "common/memory.glsl"
#include "tiles/tiles_abi.h"

WORKGROUP_SIZE(kElementwiseGroup)
PUSH_CONSTANTS(TilePackPush, p)

// Each invocation packs four columns. Neighbours load neighbours, along k or along the units.
void main() {
    uint at = linear_group() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    uint vec4s = p.columns / 4, tile = at / (vec4s * p.padded_depth);
    if (tile >= p.tiles) return;
    bool along_k = p.in_k == 1;
    uint k = along_k ? at % p.padded_depth : at / vec4s % p.padded_depth;
    uint first_column = (along_k ? at / p.padded_depth : at) % vec4s * 4;
    Real4 run = Real4(0);
    uint part = gl_WorkGroupID.z;
    Stride first = part / p.heads * p.in_direction + part % p.heads * p.in_head + k / p.H * p.in_k_slot + k % p.H * p.in_k;
    UNROLL for (uint i = 0; i < 4; ++i) {
        uint column = first_column + i;
        uint unit = tile * p.units + column / p.products, slot = p.gate_order >> (4 * (column % p.products)) & 15;
        if (column < p.units * p.products && unit < p.H && k < p.depth)
            run[i] = load_tensor(0, p.in_, first + unit * p.in_unit + slot * p.in_slot);
    }
    Stride row = (Stride(part) * p.tiles + tile) * p.padded_depth + k;
    store4(p.out_, row * p.columns + first_column, run);
}
