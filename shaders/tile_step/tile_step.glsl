// The main function of the kernels that compute one step of a tile, or one phase of a step, per dispatch.
#ifndef VKRNN_TILE_STEP_GLSL
#define VKRNN_TILE_STEP_GLSL
#include "tile_step/tile_cells.glsl"

void main() {
    Params p = Params(push.params);
    Tile tile = this_tile(p, tile_rows);
    CellInputs early = fetch_early(p, tile, push.step);
    if (has_product(p, push.step)) multiply(p, tile, operand_region(push.step));
    finish_step(p, tile, push.step, early);
}

#endif
