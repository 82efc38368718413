// What a cell's file needs. It is compiled twice: by the shader compiler, and within a struct by the C++ compiler, for
// which a Real is a vector of numbers (see cpp/src/cpu/kernels/cell.cpp.in). So a cell keeps to what both languages have:
// results are arrays, conditions are on constants, and constants are declared by
//   CELL_CONSTANT(id, name)
// It may call activate, derivative and exponential, and of GLSL's functions max and step.
// Its traits, all that drivers know of it, are macros:
//   CELL_GATES          how many gates; arrays of them are in the canonical order of the cell's row in cells.cpp
//   CELL_STATES         how many states: h, then the cell states
//   CELL_VECTORS        how many vectors of H elements it learns besides the weights and biases
//   CELL_KEEPS_HIDDEN   where cell_backward reads before[0], which is h[k-1]; other cells have cell_hidden, which forms h
//                       again from what training keeps
//   CELL_SCALE          where the last gate is a candidate: the gate that scales what the candidate's product multiplies.
//                       A step then has two phases, for which there are cell_forward_first, cell_forward_second and
//                       cell_backward_second. Where scales_product is 1 the gate scales the product itself, and one
//                       phase is enough.
#ifdef __cplusplus
#define CELL_CONSTANT(id, name) const abi::uint name = constants[abi::id];
#else
#include "activation.glsl"
#define CELL_CONSTANT(id, name) layout(constant_id = id) const uint name = 0;
#endif

#define CELL_CANDIDATE (CELL_GATES - 1)
CELL_CONSTANT(kScalesProduct, scales_product)
