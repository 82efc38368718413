// One forward time step, whose product is computed on matrix units.
#define MATRIX_UNITS
#include "common/tile_step.glsl"
