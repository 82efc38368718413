// One backward time step, whose product is computed on matrix units.
#define TILE_SCALES
#include "backward_cell.glsl"
#include "matrices/tiles.glsl"
#include "tile_backward.glsl"

uint load_scale(Address at) { return Words(at).value; }
#include "tile_step.glsl"
