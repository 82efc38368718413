// Every cell's file includes this. A cell is compiled three times: as GLSL and as CUDA C++, like every kernel, and as
// C++ for the CPU, where a Real is a vector of numbers (see cpp/src/cpu/kernels/cell.cpp.in). So a cell uses only what
// all of them have: of language.glsl INLINE, `out` and `inout`. It returns results in arrays, branches on constants
// only, and declares constants with
//   CELL_CONSTANT(id, name)     an integer of step_abi.h
//   CELL_OPTION(bit, name)      a boolean option: the property cell_option(bit) in the cell's row
//   CELL_NUMBER(slot, name)     a floating-point option, used as name(): the NumberProperty of that slot
// It may call activate, derivative, exponential and log_sigmoid, max and step of GLSL, and
// choose(edge, x, a, b), which is a where x >= edge, and b elsewhere. For gates that the option `clip` applies
// to, it calls activate_gate and gate_derivative instead.
// Besides cell_forward and cell_backward, every cell defines cell_hidden, which recomputes h after the cell's step from
// the training state and the states after it, or before it if it defines CELL_KEEPS_HIDDEN. A cell with one state
// besides h also defines cell_next, which recomputes that from the training state and the states before.
// Drivers know a cell by these functions and macros alone:
//   CELL_GATES          number of gates; arrays over gates are in the canonical order of the cell's row in cells.cpp
//   CELL_STATES         number of states: h, then the cell states
//   CELL_VECTORS        number of learned vectors of H elements besides the weights and biases
//   CELL_KEEPS_HIDDEN   defined if cell_forward or cell_backward reads before[0], which is h[k-1]
//   CELL_STABILIZER     defined if a state is an exponent, of which the others are multiples. Resets scale those alone;
//                       they clear it where their factor is 0, so that nothing of the past is left
//   CELL_SCALE          defined if the last gate is a candidate: the gate that scales the operand of the candidate's
//                       product. A step then has two phases, for which the cell defines cell_forward_first,
//                       cell_forward_second and cell_backward_second. If scales_product is 1, the gate scales the
//                       product itself, and one phase is enough.
#if defined(__cplusplus) && !defined(__CUDACC__)
#include "cell-inl.h"   // in cpp/src/cpu/kernels
#else
#include "common/activation.glsl"
#include "common/real.glsl"
#include "common/step_abi.h"

#define CELL_CONSTANT(id, name) SPECIALIZED(id, uint, name, 0)
#define CELL_OPTION(bit, name) CONSTANT bool name = (cell_options >> bit & 1u) != 0u;
#define CELL_NUMBER(slot, name) SPECIALIZED_REAL(kNumber0 + 2 * (slot), name)
#endif
#define CELL_CANDIDATE (CELL_GATES - 1)

CELL_CONSTANT(kScalesProduct, scales_product)
CELL_CONSTANT(kOptions, cell_options)
