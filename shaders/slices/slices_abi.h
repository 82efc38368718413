// What C++ and the kernels of the strategy `slices` share. See common/abi.h.
#ifndef VKRNN_SLICES_ABI_H
#define VKRNN_SLICES_ABI_H
#include "common/step_abi.h"

#ifdef __cplusplus
namespace vkrnn::abi {
#endif

// One workgroup runs all steps of some batch rows of a direction or, with heads, of some heads.
// Specialization constants, after those of all step kernels.
const uint kSliceLanes = kStepConstants;           // invocations that split the dot products of the same units
const uint kSliceRows = kStepConstants + 1u;       // batch rows per workgroup; a power of two
const uint kSliceRuns = kStepConstants + 2u;       // runs of 4 consecutive k per invocation and product; 0: no products
const uint kRegisterVec4s = kStepConstants + 3u;   // vec4s of an invocation's weights that stay in registers
const uint kSharedVec4s = kStepConstants + 4u;     // vec4s after these that stay in shared memory
const uint kSliceInvocations = kStepConstants + 5u;   // per workgroup; equals kLocalSize
const uint kToInitial = kStepConstants + 6u;       // 1: step -1 follows, for the initial state's gradient
const uint kSliceUnits = kStepConstants + 7u;      // units whose dot products the lanes split; a power of two
const uint kSliceHeads = kStepConstants + 8u;      // heads of a part
const uint kSliceConstants = kStepConstants + 9u;

// Packs weights for slices: out(part, (run * units + u) * products + g, invocation, c). Invocation i has element
// k = 4 * (run * lanes + i % lanes) + c of product g of the part's unit (i / lanes * units + u). The sum over k goes over
// the units of the unit's head, in one slot after the other. Elements past the ends are zeros. Tensor 0 is `in_`.
// Workgroups: x and y count groups of elements of one part; z is the part, or the direction if there is one part.
struct SlicePackPush {
    Address in_, out_;
    Stride in_direction, in_head, in_k, in_k_slot, in_unit, in_slot;   // strides in elements
    uint depth, H, head_units;                     // H: units of a part
    uint parts;                                    // of a direction
    uint runs, lanes, invocations;
    uint products, gate_order;                     // slot of product g in bits 4g .. 4g+3
    uint units;
};

#ifdef __cplusplus
}  // namespace vkrnn::abi
#endif
#endif
