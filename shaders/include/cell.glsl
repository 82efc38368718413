// What a cell's file needs. It is compiled twice: by the shader compiler, and within a struct by the C++ compiler, for
// which a Real is a vector of numbers (see cpp/src/cpu/cell.cpp.in). So a cell keeps to what both languages have: results
// are arrays, conditions are on constants, and constants are declared by
//   CELL_CONSTANT(id, name)
#ifdef __cplusplus
#define CELL_CONSTANT(id, name) const abi::uint name = constants[abi::id];
#else
#include "activation.glsl"
#define CELL_CONSTANT(id, name) layout(constant_id = id) const uint name = 0;
#endif
