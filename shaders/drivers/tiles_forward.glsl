// One time step forward, its product by plain multiply-adds.
#include "forward_cell.glsl"
#include "tiles.glsl"
#include "tile_forward.glsl"
#include "tile_step.glsl"
