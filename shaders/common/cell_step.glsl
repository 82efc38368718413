// A step of one element of the state: forward, or backward in a driver that defines BACKWARD first. Either file defines
// CellInputs and fetch_cell, and the step's products: PRODUCTS for each unit and batch row, of which those from
// first_product up to end_product are computed in this phase.
#ifndef VKRNN_CELL_STEP_GLSL
#define VKRNN_CELL_STEP_GLSL
#ifdef BACKWARD
#include "common/backward_cell.glsl"
#else
#include "common/forward_cell.glsl"
#endif
#endif
