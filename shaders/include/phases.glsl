// The phase of a step, and the gates whose recurrent products it forms. A cell's file is included before.
#ifndef VKRNN_PHASES_GLSL
#define VKRNN_PHASES_GLSL
#include "abi.h"

layout(constant_id = kPhase) const uint phase = 0;
#ifdef CELL_FIRST_GATES
const uint first_gate = phase == 2 ? CELL_FIRST_GATES : 0;
const uint end_gate = phase == 1 ? CELL_FIRST_GATES : CELL_GATES;
#else
const uint first_gate = 0;
const uint end_gate = CELL_GATES;
#endif
#endif
