// One backward time step, whose product is computed with plain multiply-adds.
#include "backward_cell.glsl"
#include "tiles.glsl"
#include "tile_backward.glsl"
#include "tile_step.glsl"
