// What C++ and GLSL must agree on; both compilers read this file.
// Structs hold 8-byte members first and no vectors, so that std430 and C++ lay them out alike.
#ifndef VKRNN_ABI_H
#define VKRNN_ABI_H

#ifdef __cplusplus
#include <cstdint>
namespace vkrnn::abi {
using uint = std::uint32_t;
using Address = std::uint64_t;   // a device address; in a plan, a Place
using Stride = std::int64_t;     // in elements
#else
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#define Address uint64_t
#define Stride int64_t
#endif

// Activations, as in MPSGraphRNNActivation.
const uint kNone = 0u;
const uint kRelu = 1u;
const uint kTanh = 2u;
const uint kSigmoid = 3u;
const uint kHardSigmoid = 4u;

// Workgroups along x of a dispatch that has several along y: what every device takes.
const uint kGroupsInX = 65535u;

// Storage buffers that a kernel may write to besides what it reaches by addresses: see Dispatch::windows.
const uint kWindows = 4u;
const uint kProductWindow = 3u;           // of gemm_broadcast: its own, as pushing descriptors takes long on some drivers
const uint kMostWindowBytes = 1u << 27;   // what every device has
const uint kWindowBytes = 16u;            // of an element: places in a window are multiples of it

const uint kMaxGates = 4u;
const uint kMaxStates = 2u;

// ---- matrix product: C(m, n) = sum over k of A(m, k) B(n, k), per batch -------------------------------------------
// Specialization constants.
const uint kGemmAColumns = 0u;      // 1: A is stored with m contiguous (element k * lda + m), else m * lda + k
const uint kGemmBColumns = 1u;      // likewise B, with n for m
const uint kGemmVectors = 2u;       // 1: everything is a multiple of 4 elements
const uint kGemmLanes = 3u;         // register flavour: invocations of a workgroup, which is one subgroup
// Tiles of C, by flavour: what an invocation forms, and what a workgroup forms.
const uint kRegisterTileM = 16u;
const uint kRegisterTileN = 4u;
const uint kTiledTile = 64u;
const uint kTiledInvocations = 256u;   // of a workgroup of the tiled flavour

// Workgroups: x (and y, where x alone does not suffice) number the tiles of C, n fastest; z = slab * batches + batch.
struct GemmPush {
    Address a, b, c;                    // batch 0
    Stride a_batch, b_batch, c_batch;   // elements from one batch to the next
    Stride c_slab;                      // elements from one slab to the next
    uint m, n, k;
    uint lda, ldb, ldc;
    uint chunk;                         // slab s sums k in [s * chunk, min(k, (s + 1) * chunk))
    uint batches;
};
const uint kGemmPlaces = 3u;

// ---- matrix product for llvmpipe: C = C_in + A B for one block of k ---------------------------------------------------
// Specialization constants.
const uint kBroadcastLanes = 0u;    // of a subgroup; a panel of B and C is twice as wide
const uint kBroadcastBlocks = 1u;   // of k, of a workgroup: one per subgroup
const uint kBroadcastRows = 2u;     // of a workgroup's tile; like its panels a power of two
const uint kBroadcastPanels = 3u;   // of a workgroup's tile
const uint kBroadcastDepth = 4u;    // of a block of k, a multiple of 8
// Elements from one step of k to the next, where rows of A lie side by side; 0 where steps of k do, and (m, k) is at
// m * lda + k. With a step, row m begins panel m / w, w being a subgroup's lanes or a tile's rows, whichever are more, and
// panels are w * lda elements apart: A is packed, lda rows of k in each, or as it is, with lda 1.
const uint kBroadcastAStride = 5u;
const uint kBroadcastInWindow = 6u; // 1: C is the products' window, and a place in it
const uint kBroadcastBStride = 7u;    // elements from one step of k to the next, in a panel of B
const uint kBroadcastTable = 8u;    // the most workgroups, or blocks of one, along an axis
// Workgroups: x numbers tiles of rows, y groups of panels; z is what the strides make of it: more rows, or blocks of k.
struct BroadcastGemmPush {
    Address a, b, c_in, c;
    uint a_first, a_step;               // bytes: A is at a + a_first + max(step + lag, 0) * a_step, modulo 4 GiB
    uint lda, ld_in, ldc;               // elements
    uint panel, c_in_panel;             // bytes from one panel to the next
    uint a_z, b_z, c_in_z, c_z;         // bytes from one z to the next
    int lag;
    uint padding[2];
    int step;
    uint table[kBroadcastTable];        // 0, 1, 2, ...
    uint more_padding;
};
const uint kBroadcastGemmPlaces = 4u;
const uint kBroadcastCounter = 88u;     // byte of `step`, here and below

// ---- devices of one CPU that share the dispatches of a call ---------------------------------------------------------------
// Specialization constants.
const uint kMeetPatient = 0u;       // 1: waits long, for a meeting that a dispatch with 0 has not seen happen
const uint kMeetPatience = 2048u;   // workgroups of such a dispatch
struct MeetPush {
    Address meeting;                    // a number that grows by one for each device that comes
    Address own;                        // the device's memory, as below
    uint devices;                       // that meet
    uint padding;
};
// Bytes of the memory each device has for it.
const uint kMeetGroups = 0u;        // arguments of the dispatch with kMeetPatient: three words
const uint kMeetAlone = 12u;        // 1: the others did not come
const uint kMeetExpected = 16u;     // what the number is when all have come
const uint kMeetPause = 64u;
const uint kMeetNumber = 128u;      // the first device's is the one that all count with
const uint kMeetBytes = 192u;

// ---- a matrix as panels: out(panel, row, column) = in(row, panel * width + column), or zero where there is none ----------
struct PackPush {
    Address in_, out_;
    Stride in_row, in_column, out_panel;   // elements
    uint rows, columns;                    // of the matrix
    uint width, out_rows, out_row;         // columns and rows of a panel; elements from row to row
    uint padding;
};
const uint kPackPlaces = 2u;
// The same for whole panels and runs of rows, for llvmpipe; out is the first window.
// Specialization constants.
const uint kPackLanes = 0u;
const uint kPackVectors = 1u;          // of a panel's row
const uint kPackPanels = 2u;           // of a workgroup, if a row's elements lie side by side
const uint kPackContiguous = 3u;       // 1: they do
const uint kPackRows = 32u;            // of one vector each, of a workgroup
// Workgroups: x + kBroadcastTable * y and z number runs and panels, in the order that suits the source.
struct PackRunsPush {
    Address in_, out_;
    uint in_row, in_column, out_row, out_panel;      // bytes
    uint in_xy, out_xy, in_z, out_z;                 // bytes from one to the next
    uint table[kBroadcastTable];       // 0, 1, 2, ...
};

// ---- sums over rows: out(part, c) = sum over the part's rows of in(row, c) [* factor(row, c)] -----------------------
// A column c stands for (direction, gate, unit) = (c / (gates * width), c / width % gates, c % width).
// Specialization constants.
const uint kReduceFactor = 0u;      // 1: multiply by the factor
// Workgroups: x, y number columns in groups of the workgroup's size; z numbers the parts.
struct ReducePush {
    Address in_, factor, out_;
    uint rows, part;                    // rows in all; rows of one part
    uint width, gates, directions;      // columns = directions * gates * width
    uint in_row, in_direction, in_gate;             // strides in elements
    uint factor_row, factor_direction, factor_gate;
};
const uint kReducePlaces = 3u;
// The same of kSumRows rows and contiguous columns, without a factor, for llvmpipe; out is the first window.
// Specialization constants.
const uint kSumLanes = 0u;
const uint kSumRows = 64u;
// Workgroups: x + kBroadcastTable * y numbers vectors of columns, z runs of rows.
struct SumRowsPush {
    Address in_, out_;
    uint in_row, in_run, out_run;       // bytes
    uint table[kBroadcastTable];        // 0, 1, 2, ...
    uint padding;
};
const uint kSumRowsPlaces = 2u;

// ---- transpose of each of a batch of matrices --------------------------------------------------------------------------
struct TransposePush {
    Address in_, out_;
    uint rows, columns;
};
const uint kTransposePlaces = 2u;
const uint kElementwiseGroup = 64u;    // invocations of a workgroup of transpose, reduce and convert

// ---- between float32 and the 16-bit types ------------------------------------------------------------------------------
// Specialization constants.
const uint kConvertBfloat = 0u;     // 1: bfloat16, else float16
const uint kConvertNarrow = 1u;     // 1: from float32, else to float32
// Workgroups: x, y number pairs of elements in groups. Both ends are multiples of 4 bytes.
struct ConvertPush {
    Address in_, out_;
    uint count;
    uint padding;
};
const uint kConvertPlaces = 2u;

// ---- the time loop ---------------------------------------------------------------------------------------------------
// A view tells where element (direction d, step k, batch row n, slot, unit j) of a tensor is:
//   at[d] + bytes * (k * step[d] + n * row + slot * slot_stride + j * unit)
// Slots are gates in the descriptor's order (or the vectors of a cell). Stride 0 broadcasts; absent tensors are views
// of zeros or ones. Reverse order is a negative step.
// Where batch rows have lengths of their own, a reversed row starts at its own end, and steps from its length on belong to
// the rows past its end, which are zeros in every result.
struct Strides {
    Stride step[2];
    uint row, slot, unit;
    uint padding;
};

const uint kProjected = 0u;        // forward: x W^T; without W the source
const uint kBias = 1u;
const uint kVectors = 2u;          // peephole, secondary bias
const uint kMask = 3u;
const uint kSaved = 4u;            // z: what training keeps
const uint kHidden = 5u;           // h by step
const uint kCell = 6u;             // c by step
const uint kInitHidden = 7u;
const uint kInitCell = 8u;
const uint kOperand = 9u;          // what the recurrent product multiplies in a second phase; backward: h[k-1] * m[k]
const uint kUpstream = 10u;        // backward: gradient of h by step
const uint kDelta = 11u;           // backward: gradient of the gates' pre-activations
const uint kRecurrentDelta = 12u;  // backward: gradient of the recurrent products (the deltas themselves, for most cells)
const uint kCarryHidden = 13u;     // backward: gradient of h and c carried to the step before
const uint kCarryCell = 14u;
const uint kLastHidden = 15u;      // backward: state and cell gradient of the last step
const uint kLastCell = 16u;
const uint kProduct = 17u;         // backward: the recurrent products of the candidate gate (reset after)
const uint kPreviousCell = 18u;    // backward: c[k-1], in source order
const uint kResetOperand = 19u;    // backward: h[k-1] * m[k] * r (reset before)
const uint kSums = 20u;            // the recurrent products, where other kernels form them: slabs of [N, slots, H]
const uint kNextOperand = 21u;     // and what those multiply in the next step (backward, in this one too)
const uint kViews = 22u;

// Read through its address; one block per call and phase.
struct StepParams {
    Address at[2 * kViews];            // at[2 * view + direction]
    Address weights[2];                // of the recurrent product, by direction: rows of `depth` contiguous elements
    Address lengths;                   // N 32-bit integers: the steps of each batch row; read where kHasLengths is 1
    Strides strides[kViews];
    uint T, N, H;
    uint depth;                        // elements in a row of the weights that take part
    uint weights_row;                  // elements from row to row of the weights
    uint padding;
};
const uint kStepPlaces = 2u * kViews + 3u;

struct StepPush {
    Address params;
    int step;
    uint padding;
    uint table[2];                     // 0, 1
};
const uint kStepPushPlaces = 1u;
const uint kStepCounter = 8u;          // byte of `step`

// Specialization constants of the step kernels.
const uint kLocalSize = 0u;            // invocations of a workgroup
const uint kLanes = 1u;                // invocations that share a dot product
const uint kRows = 2u;                 // batch rows per invocation
const uint kVectorLoads = 3u;          // 1: rows of weights and operands are multiples of 4 elements
const uint kHasMask = 4u;              // 1: the recurrent operand is h * m, else h
const uint kPhase = 5u;                // 0: the only phase; 1, 2: first and second of two
const uint kGateOrder = 6u;            // slot of canonical gate g in bits 4g .. 4g+3
const uint kResetAfter = 7u;
const uint kFlipZ = 8u;
const uint kKeep = 9u;                 // 1: forward writes what training keeps; replay writes c[k-1]
const uint kHasVectors = 10u;          // 1: the cell's learned vectors are there
const uint kHasLengths = 11u;          // 1: batch rows end at steps of their own
const uint kActivation0 = 12u;         // five: one per gate in canonical order, then the cell state's
const uint kSlabs = 17u;               // parts of the recurrent product's sums, where other kernels form them
const uint kAddsBias = 18u;            // 1: forward adds the bias; else it is in the projection, or there is none
const uint kStepConstants = 19u;
const uint kMaxRows = 16u;             // largest value of constant kRows where lanes share a dot product

// ---- the time loop for llvmpipe, one direction a dispatch ------------------------------------------------------------------
// Specialization constants, besides those of the step kernels: kLocalSize is the subgroup's size, kLanes the subgroups of
// a workgroup, or kBroadcastTable of them and kMoreSubgroups times as many; kRows the batch rows of its tile.
const uint kOrders = 19u;              // bits
const uint kReads = 20u;               // bits
const uint kTileVectors = 21u;         // vectors of units of the tile; like its rows a power of two
const uint kTileDepth = 22u;               // of the block of k of a subgroup, a multiple of 8; 0: the products are in slabs
const uint kMoreSubgroups = 23u;
const uint kInWindows = 24u;           // 1: results are windows, and their views places in them
const uint kUnits = 25u;               // H
const uint kBroadcastStepConstants = 26u;
const uint kSourceBackwards = 1u;      // source order runs against the steps
const uint kOutputBackwards = 2u;
const uint kCellIsState = 4u;          // the cell state is kept for one step only
const uint kTwoDirections = 8u;
const uint kSavedIsState = 16u;        // and so are the gates, which the second of two phases reads
const uint kReadsBias = 1u;
const uint kReadsVectors = 2u;
const uint kReadsCarry = 4u;           // backward: there is a gradient of h besides the recurrent product's
const uint kLeavesOperand = 8u;        // backward: step k recomputes h[k] for what the product of step k + 1 multiplied

// Where step 0 of each tensor lies. Forward:
const uint kStepProduct = 0u;          // [slabs, N, slots, H]; with a depth, the packed weights
const uint kStepSaved = 1u;
const uint kStepVectors = 2u;
const uint kStepPreviousHidden = 3u;
const uint kStepPreviousCell = 4u;
const uint kStepCell = 5u;
const uint kStepHidden = 6u;
const uint kStepProjected = 7u;
const uint kStepBias = 8u;
const uint kStepMultiplied = 9u;       // what the product multiplies, whole rows: the previous hidden state, or the state
                                       // that the first of two phases left in place of kStepHidden
const uint kStepFirstGates = 10u;      // second of two phases: kStepSaved, to be read
// Backward, besides those up to kStepCell; no cell has all of them.
const uint kStepRecurrentDelta = 4u;
const uint kStepResetOperand = 4u;     // second of two phases: h[k-1] * r, in source order
const uint kStepCandidateProduct = 5u;
const uint kStepUpstream = 6u;
const uint kStepDelta = 7u;
const uint kStepCarryHidden = 8u;      // gradients that the later step left
const uint kStepCarryCell = 9u;
const uint kStepCarried = 10u;         // where this one leaves them
const uint kStepLaterDelta = 3u;            // what the product multiplies, whole rows: what kStepDelta was a step ago
const uint kStepLaterRecurrentDelta = 9u;   // or kStepRecurrentDelta, in cells that have it
const uint kStepLeftOperand = 2u;      // with kLeavesOperand, in cells without vectors
// Replay: h[k-1], in source order.
const uint kStepOperand = 6u;
const uint kBroadcastViews = 11u;
// Workgroups: x numbers tiles of rows, y + kBroadcastTable * z tiles of units; replay: z numbers steps.
struct BroadcastStepPush {
    Address at[kBroadcastViews];
    int step;
    uint N;
    uint table[kBroadcastTable];       // 0, 1, 2, ...
};
const uint kBroadcastStepPlaces = kBroadcastViews;

#ifdef __cplusplus
}  // namespace vkrnn::abi
#endif
#endif
