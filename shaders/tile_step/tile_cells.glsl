// A step of a tile's rows and units, apart from the recurrent product: forward, or backward in a driver that defines
// BACKWARD first. Drivers include the product before it: matrices/matrix_tiles.glsl, for which they define MATRIX_UNITS,
// or tiles/tiles.glsl. Both have the type Tile and the functions multiply, tile_sum and store_operand.
#ifndef VKRNN_TILE_CELLS_GLSL
#define VKRNN_TILE_CELLS_GLSL
#ifdef BACKWARD
#include "tile_step/tile_backward.glsl"
#else
#include "tile_step/tile_forward.glsl"
#endif

// Loads the inputs of an invocation's cell before the product is computed, if it has only one cell.
INLINE CellInputs fetch_early(Params p, Tile tile, int step) {
    Element e;
    CellInputs inputs;
    if (one_cell && find_cell(p, tile, invocation(), step, e)) inputs = fetch_cell(p, e);
    return inputs;
}

#endif
