// Included by every cell's file, which is compiled twice: by the shader compiler, and within a struct by the C++ compiler, for
// which a Real is a vector of numbers (see cpp/src/cpu/kernels/cell.cpp.in). So a cell keeps to what both languages have:
// results are arrays, conditions are on constants, and constants are declared by
//   CELL_CONSTANT(id, name)     an integer of abi.h
//   CELL_OPTION(bit, name)      a boolean option: the property cell_option(bit) of the cell's row
//   CELL_NUMBER(slot, name)     a floating-point option, which is name(): the NumberProperty of that slot
// It may call activate and derivative; for gates with the option `clip`, activate_gate and gate_derivative; exponential;
// and of GLSL's functions max and step.
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
// As in activation.glsl.
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
// Clipping stands outside of the loops, which are faster without its code.
HWY_NOINLINE Real clipped_gate(uint kind, Real sum) const { return activate(kind, clipped<T>(sum, number(abi::kClip))); }
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
