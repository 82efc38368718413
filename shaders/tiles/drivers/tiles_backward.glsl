// One backward time step, whose product is computed with plain multiply-adds.
#define BACKWARD
#include "common/tile_step.glsl"
