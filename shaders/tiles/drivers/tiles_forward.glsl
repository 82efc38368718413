// One forward time step, whose product is computed with plain multiply-adds.
#include "common/cell_step.glsl"
#include "tiles/tiles.glsl"
#include "tile_step/tile_step.glsl"
