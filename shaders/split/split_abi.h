// What C++ and the kernels of the strategy `split` share. See common/abi.h.
#ifndef VKRNN_SPLIT_ABI_H
#define VKRNN_SPLIT_ABI_H
#include "common/step_abi.h"

#ifdef __cplusplus
namespace vkrnn::abi {
#endif

// The strategy's views. They are the same at every step.
const uint kStepOperand = kOwnView;       // of the next product; backward, a slot for each gate
const uint kStepProduct = kOwnView + 1u;  // of the operand and the weights: forward, a slot for each gate; backward,
                                          // one for each part of the sum
const uint kBlockScales = kOwnView + 2u;  // no view: the scales of two steps' operands, see split_backward.glsl

// Specialization constants, after those of all step kernels.
const uint kSplitUnits = kStepConstants;        // units of a workgroup, at most one for each invocation
const uint kSplitParts = kStepConstants + 1u;   // backward: parts of the product's sum
const uint kSplitBlocks = kStepConstants + 2u;  // backward: units / kSplitUnits if the operand has scales, else 0
const uint kSplitConstants = kStepConstants + 3u;

#ifdef __cplusplus
}  // namespace vkrnn::abi
#endif
#endif
