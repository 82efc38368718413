// All backward time steps in one dispatch.
#define BACKWARD
#include "matrices/persistent.glsl"
