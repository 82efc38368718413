// All forward time steps in one dispatch.
#include "forward_cell.glsl"
#include "matrices/tiles.glsl"
#include "tile_forward.glsl"

// Stores the operand of the first step, for a workgroup that runs all steps of its rows.
void start_alone(Params p, Tile tile) {
    find_scales(p, tile, 0);
    for (uint at = invocation(); at < tile_rows * p.params.H; at += invocations) {
        uint n = tile.first_row + at / p.params.H, j = at % p.params.H;
        if (n >= p.params.N) break;
        Real first = load_view(p, kInitHidden, tile.direction, 0, n, 0, j) * load_mask(p, tile.direction, 0, n, j);
        store_operand(p, tile.direction, 0, n, 0, j, first);
    }
    workgroup_barrier();
}

#include "matrices/persistent.glsl"
