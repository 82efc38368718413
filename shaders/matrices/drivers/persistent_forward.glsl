// All forward time steps in one dispatch.
#include "matrices/persistent.glsl"
