// Every cell's file includes this. It is compiled twice: as GLSL, and as C++ within a struct, where a Real is a vector
// of numbers (see cpp/src/cpu/kernels/cell.cpp.in). So a cell uses only what both languages have. It returns results in
// arrays, branches on constants only, and declares constants with
//   CELL_CONSTANT(id, name)     an integer of abi.h
//   CELL_OPTION(bit, name)      a boolean option: the property cell_option(bit) in the cell's row
//   CELL_NUMBER(slot, name)     a floating-point option, used as name(): the NumberProperty of that slot
// It may call activate, derivative and exponential, and max and step of GLSL. For gates that the option `clip` applies
// to, it calls activate_gate and gate_derivative instead.
// Drivers know a cell by these macros alone:
//   CELL_GATES          number of gates; arrays over gates are in the canonical order of the cell's row in cells.cpp
//   CELL_STATES         number of states: h, then the cell states
//   CELL_VECTORS        number of learned vectors of H elements besides the weights and biases
//   CELL_KEEPS_HIDDEN   defined if cell_backward reads before[0], which is h[k-1]; all other cells define cell_hidden,
//                       which recomputes h from the training state
//   CELL_SCALE          defined if the last gate is a candidate: the gate that scales the operand of the candidate's
//                       product. A step then has two phases, for which the cell defines cell_forward_first,
//                       cell_forward_second and cell_backward_second. If scales_product is 1, the gate scales the
//                       product itself, and one phase is enough.
#ifdef __cplusplus
#define CELL_CONSTANT(id, name) const abi::uint name = constants[abi::id];
#define CELL_NUMBER(slot, name) \
    Real name() const { return number(abi::kNumber0 + 2 * (slot)); }
#else
#include "abi.h"
#include "real.glsl"
#define CELL_CONSTANT(id, name) layout(constant_id = id) const uint name = 0;
#ifdef VKRNN_FLOAT64
#define CELL_NUMBER_AT(id, name) \
    layout(constant_id = id) const uint name##_low = 0; \
    layout(constant_id = (id) + 1) const uint name##_high = 0; \
    Real name() { return packDouble2x32(uvec2(name##_low, name##_high)); }
#else
#define CELL_NUMBER_AT(id, name) \
    layout(constant_id = id) const float name##_value = 0.0; \
    Real name() { return name##_value; }
#endif
#define CELL_NUMBER(slot, name) CELL_NUMBER_AT(kNumber0 + 2 * (slot), name)
#endif
#define CELL_OPTION(bit, name) const bool name = (cell_options >> bit & 1u) != 0u;

#define CELL_CANDIDATE (CELL_GATES - 1)
CELL_CONSTANT(kScalesProduct, scales_product)
CELL_CONSTANT(kOptions, cell_options)
CELL_CONSTANT(kHasClip, has_clip)
#ifdef __cplusplus
// The same as in activation.glsl.
HWY_INLINE Real activate(uint kind, Real x) const {
    return activation_value<T>(kind, x, number(abi::kHardSigmoidAlpha), number(abi::kHardSigmoidBeta));
}
HWY_INLINE Real derivative(uint kind, Real y) const {
    return activation_derivative<T>(kind, y, number(abi::kHardSigmoidAlpha));
}
HWY_INLINE Real activate_gate(uint kind, Real sum) const {
    return HWY_LIKELY(has_clip == 0) ? activate(kind, sum) : clipped_gate(kind, sum);
}
HWY_INLINE Real gate_derivative(uint kind, Real y) const {
    return HWY_LIKELY(has_clip == 0) ? derivative(kind, y) : clipped_derivative(kind, y);
}
// Clipping is not inlined: the loops are faster without its code.
HWY_NOINLINE Real clipped_gate(uint kind, Real sum) const {
    return activate(kind, clipped<T>(sum, number(abi::kClip)));
}
HWY_NOINLINE Real clipped_derivative(uint kind, Real y) const {
    const T clip = number(abi::kClip);
    return slope_between<T>(derivative(kind, y), y, activate(kind, -clip), activate(kind, clip),
                            number(abi::kClipSlack));
}
#else
CELL_NUMBER_AT(kHardSigmoidAlpha, hard_sigmoid_alpha)
CELL_NUMBER_AT(kHardSigmoidBeta, hard_sigmoid_beta)
CELL_NUMBER_AT(kClip, clip)
CELL_NUMBER_AT(kClipSlack, clip_slack)
#include "activation.glsl"
#endif
