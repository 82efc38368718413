// One backward time step, whose product is computed on matrix units.
#define BACKWARD
#define MATRIX_UNITS
#include "common/cell_step.glsl"
#include "matrices/matrix_tiles.glsl"
#include "tile_step/tile_step.glsl"
