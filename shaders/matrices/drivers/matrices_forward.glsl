// One forward time step, whose product is computed on matrix units.
#include "forward_cell.glsl"
#include "matrices/tiles.glsl"
#include "tile_forward.glsl"
#include "tile_step.glsl"
