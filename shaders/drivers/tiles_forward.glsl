// One forward time step, whose product is computed with plain multiply-adds.
#include "forward_cell.glsl"
#include "tiles.glsl"
#include "tile_forward.glsl"
#include "tile_step.glsl"
