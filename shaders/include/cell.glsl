// Included by every cell's file, which is compiled twice: by the shader compiler, and within a struct by the C++ compiler, for
// which a Real is a vector of numbers (see cpp/src/cpu/kernels/cell.cpp.in). So a cell keeps to what both languages have:
// results are arrays, conditions are on constants, and constants are declared by
//   CELL_CONSTANT(id, name)     an integer of abi.h
//   CELL_OPTION(bit, name)      a boolean option: the property cell_option(bit) of the cell's row
//   CELL_NUMBER(slot, name)     a floating-point option, which is name(): the NumberProperty of that slot
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
#define CELL_NUMBER(slot, name) \
    Real name() const { return abi::from_words<T>(constants + abi::kNumber0 + 2 * (slot)); }
#else
#include "activation.glsl"
#define CELL_CONSTANT(id, name) layout(constant_id = id) const uint name = 0;
#ifdef VKRNN_FLOAT64
#define CELL_NUMBER(slot, name) \
    layout(constant_id = kNumber0 + 2 * (slot)) const uint name##_low = 0; \
    layout(constant_id = kNumber0 + 2 * (slot) + 1) const uint name##_high = 0; \
    Real name() { return packDouble2x32(uvec2(name##_low, name##_high)); }
#else
#define CELL_NUMBER(slot, name) \
    layout(constant_id = kNumber0 + 2 * (slot)) const float name##_value = 0.0; \
    Real name() { return name##_value; }
#endif
#endif
#define CELL_OPTION(bit, name) const bool name = (cell_options >> bit & 1u) != 0u;

#define CELL_CANDIDATE (CELL_GATES - 1)
CELL_CONSTANT(kScalesProduct, scales_product)
CELL_CONSTANT(kOptions, cell_options)
