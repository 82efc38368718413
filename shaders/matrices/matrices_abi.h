// What C++ and the kernels for matrix units share. See common/abi.h.
#ifndef VKRNN_MATRICES_ABI_H
#define VKRNN_MATRICES_ABI_H
#include "common/step_abi.h"

#ifdef __cplusplus
namespace vkrnn::abi {
#endif

// Matrix units multiply square matrices of half-precision numbers, with float32 sums.
// A float32 operand is scaled by a power of two and split into a high and a low half-precision part,
// v = scale * (high + low). Three products of such parts give float32's accuracy. Numbers of the 16-bit types need one
// part only, as do float32 numbers that may be rounded.
// In memory an operand consists of blocks of side x side elements in the order [i block][k block][part]. The elements
// of a block are in the order in which the invocations of a subgroup hold them, 8 consecutive ones for each invocation.
// A tagged operand of two parts consists of 32-bit words instead. Each has both parts of an element and a tag. With one
// part, each element has a tag. See units.glsl.
// Specialization constants, after those of all step kernels.
const uint kMatrixSide = kStepConstants;
const uint kMatrixSubgroup = kStepConstants + 1u;   // invocations per subgroup: side * side / 8
const uint kLeftParts = kStepConstants + 2u;    // parts of the left operand: 2, or 1 if it is or becomes half precision
const uint kRightParts = kStepConstants + 3u;       // parts of the right operand
const uint kMatrixRows = kStepConstants + 4u;       // matrices per subgroup along the rows
const uint kMatrixColumns = kStepConstants + 5u;    // and along the columns
const uint kRowGroups = kStepConstants + 6u;        // subgroups per workgroup along the rows
const uint kColumnGroups = kStepConstants + 7u;     // along the columns
const uint kDepthGroups = kStepConstants + 8u;      // along k
const uint kMatrixSumSlots = kStepConstants + 9u;   // depth groups whose sums fit in shared memory: all or half of them
const uint kBlocksAhead = kStepConstants + 10u;     // k blocks loaded ahead of their products: 1 or 2
const uint kTagged = kStepConstants + 11u;          // 1: words of the left operand have a tag: see units.glsl
const uint kSharedBlocks = kStepConstants + 12u;    // k blocks of weights that a subgroup keeps in shared memory
const uint kMatrixConstants = kStepConstants + 13u;
// Further constants of persistent loops.
const uint kKeptBlocks = kMatrixConstants;          // k blocks of weights that a subgroup keeps in registers
const uint kStreams = kMatrixConstants + 1u;        // 1: there are further k blocks, which it loads in every step
const uint kAlone = kMatrixConstants + 2u;          // 1: a workgroup computes all columns of its rows, without waits
const uint kMaxSpins = kMatrixConstants + 3u;       // spin iterations after which a waiting workgroup gives up
const uint kPersistentToInitial = kMatrixConstants + 4u;   // 1: backward ends with the initial state's gradient
const uint kWholeBlocks = kMatrixConstants + 5u;    // 1: all subgroups keep as many k blocks, without padding units
const uint kPersistentConstants = kMatrixConstants + 6u;
const uint kCounterBytes = 128u;                    // from one barrier counter to the next

// Views of the strategies.
const uint kMatrixOperand = kOwnView;        // operand of the steps' products, by region: see matrix_tiles.glsl
const uint kMatrixTable = kOwnView + 1u;     // direction 0 is the table of positions, direction 1 the absmax values
const uint kMatrixScales = kOwnView + 2u;    // backward: scales of the operand by region, row tile, slot and unit tile
// Persistent: direction 0 is the flag of a workgroup that gave up, and the barrier counters; direction 1 is the device's
// word for failed waits. See persistent.glsl.
const uint kBarriers = kOwnView + 3u;

const uint kMatrixElements = 8u;                    // elements of a block per invocation

// The table maps positions in a block to elements (i * side + k) and back. It has four parts of side * side words: for
// the left operand the element at each position, then the position of each element; then the same for the right
// operand.
// Scales are computed from an absmax, the largest finite magnitude of a tensor, stored as the bits of a float. These
// are the indices of the time loop's absmax values.
const uint kAbsmaxState = 0u;   // of the initial state, and of those that resets start from
const uint kAbsmaxMask = 1u;
const uint kAbsmaxCount = 2u;
// The absmax of a right operand is stored this many bytes before its blocks.
const uint kBlocksHeader = 16u;

struct TablePush {
    Address table;
};

// Computes the absmax of `count` numbers. The caller sets `out_` to zero first. Tensor 0 is `in_`.
// Workgroups: x and y count groups of kAbsmaxGroup * kAbsmaxEach numbers.
struct AbsmaxPush {
    Address in_, out_;
    Address lengths;                   // N 32-bit integers
    uint count;
    // If row is not 0, it is the count of numbers per step and batch row, and numbers past a row's length are skipped.
    // The first number is that of step `first`.
    uint row, N;
    uint first;
};
const uint kAbsmaxGroup = 256u;   // invocations of a workgroup
const uint kAbsmaxEach = 16u;     // numbers per invocation

// Packs numbers into the blocks of an operand. Tensor 0 is `in_`. An element is (i, k), where i is a row or column of
// the operand.
// If units is not 0, columns are in tiles of `columns`, and column c of a tile is product c % products of unit
// (tile * units + c / products). k consists of runs of run_padded values, of which the first run_length exist; the
// others are zeros.
// Workgroups: x and y count groups of subgroups, each of which packs kPackEach blocks; z is batch * heads + head.
struct MatrixPackPush {
    Address in_, out_, table, absmax;
    Stride in_batch, in_head;                       // strides in elements; z counts the heads of each batch
    Stride in_i, in_k, in_run, in_slot;
    Stride out_batch;                               // in 16-byte vectors
    uint i_count, i_blocks;
    uint run_length, run_padded, k_blocks;
    uint units, columns, products, gate_order;      // units: 0 if i is itself a row or column
    uint heads;
};
const uint kPackGroup = 256u;   // invocations of a workgroup
const uint kPackEach = 4u;      // blocks per subgroup

// C(m, n) = sum over k of A(m, k) B(n, k), with A and B in blocks. Tensor 0 is c.
// Workgroups: x and y count the tiles of C; z = slab * batches + batch.
struct MatrixProductPush {
    Address a, b, c, a_absmax, b_absmax;
    Stride a_batch, b_batch;                        // in 16-byte vectors
    Stride c_batch, c_slab;                         // in elements
    uint m, n, ldc;
    uint k_blocks, chunk;                           // slab s sums k blocks [s * chunk, min(k_blocks, (s + 1) * chunk))
    uint batches;
};

#ifdef __cplusplus
}  // namespace vkrnn::abi
#endif
#endif
