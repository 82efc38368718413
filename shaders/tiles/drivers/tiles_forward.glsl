// One forward time step, whose product is computed with plain multiply-adds.
#include "common/tile_step.glsl"
