// All backward time steps in one dispatch.
#define TILE_SCALES
#include "backward_cell.glsl"
#include "matrices/tiles.glsl"
#include "tile_backward.glsl"

void start_alone(Params p, Tile tile) {}   // the last step has no product
#include "matrices/persistent.glsl"
