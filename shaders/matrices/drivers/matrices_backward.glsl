// One backward time step, whose product is computed on matrix units.
#define BACKWARD
#define MATRIX_UNITS
#include "common/tile_step.glsl"
