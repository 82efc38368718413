// What C++ and the kernels of the time loop share, whatever the strategy. See common/abi.h.
#ifndef VKRNN_STEP_ABI_H
#define VKRNN_STEP_ABI_H
#include "common/abi.h"

#ifdef __cplusplus
namespace vkrnn::abi {
#endif

// A view describes where a tensor's elements are. Element (direction d, step k, batch row n, slot, unit j) is at
//   at[d] + bytes * (k * step[d] + n * row + slot * slot_stride + j * unit)
// With heads, a strategy may divide the units of a direction into parts of some heads each, which need nothing of each
// other (kHasParts). Kernels then compute a part as if it were a direction: unit j of a part is the direction's unit
// part * H + j, and parts are numbered direction by direction.
// A slot is a gate's position in the descriptor's order, or the index of a learned vector or of a cell state. A stride
// of 0 broadcasts. An absent tensor is a view of zeros or ones. A reversed direction has a negative step.
// With lengths, a reversed row starts at its own last time step. Its steps from its length on then stand for the time
// steps past its end, where every result is zero.
struct Strides {
    Stride step[2];
    uint row, slot, unit;
    uint part;   // of a strategy's own view: from one part to the next
};

const uint kProjected = 0u;        // forward: x W^T, or the source if there is no W
const uint kBias = 1u;
const uint kVectors = 2u;          // learned vectors: peephole weights, secondary bias
const uint kMask = 3u;
const uint kTrainingState = 4u;    // z_state; forward without it: gates for the second of two phases
const uint kHidden = 5u;           // h of every step
const uint kCell = 6u;             // cell states of every step (all states but h), one per slot
const uint kInitHidden = 7u;
const uint kInitCell = 8u;
const uint kOperand = 9u;          // backward: operand of the recurrent product, h[k-1] * m[k], perhaps for each gate
const uint kUpstream = 10u;        // backward: upstream gradient of h, of every step
const uint kDelta = 11u;           // backward: gradient of the gates' pre-activations
const uint kRecurrentDelta = 12u;  // backward: gradient of the recurrent products; for most cells, kDelta itself, else
                                   // it has the slots of all gates, or only the last one, the candidate's
// backward: gradient of h, passed on to the step before; forward, if the results are in a 16-bit type: h in float32,
// for the next step. There are two regions: step k writes region k & 1.
const uint kCarryHidden = 13u;
const uint kCarryCell = 14u;       // the same for the cell states, but with one region
const uint kCarryGates = kDelta;   // forward, if the results are in a 16-bit type: gates for the second of two phases
const uint kLastHidden = 15u;      // backward: gradient of h after the last step
const uint kLastCell = 16u;
const uint kProduct = 17u;         // backward: recurrent products of the candidate, if a gate scales them
const uint kPreviousCell = 18u;    // backward, in source order: c[k-1] and perhaps c[k] of the first cell state
const uint kScaledOperand = 19u;   // operand of the candidate's product, if a gate scales the operand
const uint kUpstreamCell = 20u;    // backward: upstream gradient of the cell states, of every step
const uint kReset = 21u;           // factors of resets: see common/step.glsl
const uint kResetState = 22u;      // the states that resets start from
const uint kResetCell = 23u;
const uint kResetUp = 24u;         // backward: gradients of the states after resets, of every step
const uint kResetUpCell = 25u;
const uint kBlend = 26u;           // the new state's part of h after a step, and of the cell state: see common/step.glsl
const uint kBlendCell = 27u;       // = kBlend + 1
const uint kBlendUp = kProjected;  // backward: gradients of the parts of h, of every step
// A strategy may have a few views of its own, from kOwnView on: see its folder.
const uint kOwnView = 28u;
// Views of reset_gradients.glsl, which runs after the loop. Its constant kKeep has bit i if view kResetGradient + i is
// wanted.
const uint kResetGradient = kOwnView;            // for each unit
const uint kResetStateGradient = kOwnView + 1u;
const uint kResetCellGradient = kOwnView + 2u;
const uint kViews = kOwnView + 4u;
const uint kStoredWeights = kViews;   // the number of the weights among the step kernels' tensors: see kStored

// Parameters of the step kernels, which read them through an address. There is one block per call and phase.
struct StepParams {
    Address at[2 * kViews];            // at[2 * view + direction]
    Address weights[2];                // recurrent weights by direction; rows of `depth` contiguous elements
    Address lengths;                   // N 32-bit integers, the length of each batch row; read if kHasLengths is 1
    Strides strides[kViews];
    Stride weights_part;               // elements from one part to the next of the weights
    uint T, N, H;                      // H: units of a direction, or of a part
    uint parts;                        // parts of a direction
    uint head_units;                   // units of a head
    uint depth;                        // elements used of each row of the weights; for matrices, k blocks
    uint weights_row;                  // elements from one row to the next of the weights, or from one tile to the next
    uint first_depth;                  // tiles and matrices: the operand's k, or k block, that the weights begin at
};

struct StepPush {
    Address params;
    int step;
    uint steps;                        // the most steps that the dispatch makes, for kernels that make several
};
const uint kStepCounter = 8u;          // byte offset of `step`

// Specialization constants of the step kernels.
const uint kLocalSize = 0u;            // invocations of a workgroup
const uint kLanes = 1u;                // invocations that share a dot product
const uint kRows = 2u;                 // batch rows per invocation
const uint kVectorLoads = 3u;          // 1: rows of weights and operands are multiples of 4 elements
const uint kHasMask = 4u;              // 1: the recurrent operand is h * m, else h; 2: with an m for each gate
const uint kPhase = 5u;                // 0: the step has one phase; 1, 2: first and second of two phases
const uint kGateOrder = 6u;            // slot of canonical gate g in bits 4g .. 4g+3
const uint kScalesProduct = 7u;        // 1: a gate scales the candidate's product; 0: it scales the product's operand
const uint kOptions = 8u;              // the cell's own boolean options, one bit each
const uint kKeep = 9u;   // forward: 1 stores the training state; recompute.glsl: 1 stores c[k-1], 2 also c[k]
const uint kHasVectors = 10u;          // 1: the cell's learned vectors are given
const uint kHasLengths = 11u;          // 1: batch rows have lengths
const uint kHasClip = 12u;             // 1: the sums that enter the gates are clamped
const uint kActivation0 = 13u;         // five constants: one per gate in canonical order, then the cell state's
const uint kNumber0 = 18u;             // two floating-point options of the cell, two words each: see to_words
const uint kHardSigmoidAlpha = 22u;    // this and the next four: numbers, two words each
const uint kHardSigmoidBeta = 24u;
const uint kClip = 26u;
const uint kGradientClip = 28u;        // backward: limit of the gradient of h that a step passes on
const uint kClipSlack = 30u;           // see gate_derivative
const uint kDeviceExp = 32u;           // 1: activations use the device's exp2
const uint kHasUpstreamCell = 33u;     // backward, 1: kUpstreamCell is given
const uint kHasParts = 34u;            // 1: workgroups compute parts of a direction's units
const uint kHasHeads = 35u;            // 1: the H units of a direction or part belong to several heads
const uint kHasReset = 36u;            // 1: there are resets
const uint kKeepsResetUp = 37u;        // backward, 1: kResetUp and kResetUpCell are stored
const uint kHasGradientClip = 38u;     // backward, 1: kGradientClip limits
const uint kBlendsHidden = 39u;        // 1: kBlend is given
const uint kBlendsCell = 40u;          // 1: kBlendCell is given
const uint kKeepsBlendUp = 41u;        // backward, 1: kBlendUp is stored
const uint kStepConstants = 42u;
const uint kRecomputeRows = 4u;        // batch rows of steps in an invocation of `recompute`
const uint kMaxRows = 16u;             // largest value of kRows if invocations share dot products

#ifdef __cplusplus
}  // namespace vkrnn::abi
#endif
#endif
