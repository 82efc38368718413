// Structs and constants that C++ and GLSL share. Both compilers read this file. Structs put 8-byte members first and
// contain no vectors, so that std430 and C++ give them the same layout.
#ifndef VKRNN_ABI_H
#define VKRNN_ABI_H

#ifdef __cplusplus
#include <array>
#include <bit>
#include <cstdint>
namespace vkrnn::abi {
using uint = std::uint32_t;
using Address = std::uint64_t;   // a device address; in a plan, a buffer reference (Place)
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

// Workgroups along x in a dispatch that also uses y. Every Vulkan device supports this many.
const uint kGroupsInX = 65535u;

// ---- matrix product: C(m, n) = sum over k of A(m, k) B(n, k), per batch --------------------------------------------
// Specialization constants.
const uint kGemmAColumns = 0u;      // 1: A is stored with m contiguous (element k * lda + m), else m * lda + k
const uint kGemmBColumns = 1u;      // the same for B, with n instead of m
const uint kGemmVectors = 2u;       // 1: all sizes and strides are multiples of 4 elements
const uint kGemmLanes = 3u;         // register products: invocations per workgroup, which is one subgroup
// Size of a tile of C: of one invocation in register products, of one workgroup in tiled products.
const uint kRegisterTileM = 16u;
const uint kRegisterTileN = 4u;
const uint kTiledTile = 64u;
const uint kTiledInvocations = 256u;   // per workgroup of tiled products

// Long sums are split into slabs of k, each of which has its own copy of C.
// Workgroups: x and y count the tiles of C, n fastest; z = slab * batches + batch.
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

// ---- sums over rows: out(part, c) = sum over the part's rows of in(row, c) [* factor(row, c)] ----------------------
// Column c is (direction, gate, unit) = (c / (gates * width), c / width % gates, c % width).
// Specialization constants.
const uint kReduceFactor = 0u;      // 1: multiply by `factor`
// Workgroups: x and y count groups of columns, one column per invocation; z is the part.
struct ReducePush {
    Address in_, factor, out_;
    uint rows, part;                    // rows in total; rows per part
    uint width, gates, directions;      // columns = directions * gates * width
    uint in_row, in_direction, in_gate;             // strides in elements
    uint factor_row, factor_direction, factor_gate;
};
const uint kReducePlaces = 3u;

// ---- transpose of each matrix of a batch ---------------------------------------------------------------------------
struct TransposePush {
    Address in_, out_;
    uint rows, columns;
};
const uint kTransposePlaces = 2u;
const uint kElementwiseGroup = 64u;    // invocations per workgroup of transpose, reduce and convert

// ---- conversion between float32 and a 16-bit type ------------------------------------------------------------------
// Specialization constants.
const uint kConvertBfloat = 0u;     // 1: bfloat16, else float16
const uint kConvertNarrow = 1u;     // 1: from float32 to 16 bits, else to float32
const uint kConvertEach = 8u;       // elements per invocation
// Workgroups: x and y count groups of invocations. Both addresses are multiples of 4 bytes.
struct ConvertPush {
    Address in_, out_;
    uint count;
    uint padding;
};
const uint kConvertPlaces = 2u;

// ---- the time loop -------------------------------------------------------------------------------------------------
// A view describes where a tensor's elements are. Element (direction d, step k, batch row n, slot, unit j) is at
//   at[d] + bytes * (k * step[d] + n * row + slot * slot_stride + j * unit)
// A slot is a gate's position in the descriptor's order, or the index of a learned vector or of a cell state. A stride
// of 0 broadcasts. An absent tensor is a view of zeros or ones. A reversed direction has a negative step.
// With lengths, a reversed row starts at its own last time step. Its steps from its length on then stand for the time
// steps past its end, where every result is zero.
struct Strides {
    Stride step[2];
    uint row, slot, unit;
    uint padding;
};

const uint kProjected = 0u;        // forward: x W^T, or the source if there is no W
const uint kBias = 1u;
const uint kVectors = 2u;          // learned vectors: peephole weights, secondary bias
const uint kMask = 3u;
const uint kSaved = 4u;            // training state (z_state)
const uint kHidden = 5u;           // h of every step
const uint kCell = 6u;             // cell states of every step (all states but h), one per slot
const uint kInitHidden = 7u;
const uint kInitCell = 8u;
const uint kOperand = 9u;          // backward: operand of the recurrent product, h[k-1] * m[k]
const uint kUpstream = 10u;        // backward: upstream gradient of h, of every step
const uint kDelta = 11u;           // backward: gradient of the gates' pre-activations
const uint kRecurrentDelta = 12u;  // backward: gradient of the recurrent products; for most cells, kDelta itself
const uint kCarryHidden = 13u;     // backward: gradient of h, passed on to the step before
const uint kCarryCell = 14u;
const uint kLastHidden = 15u;      // backward: gradient of h after the last step
const uint kLastCell = 16u;
const uint kProduct = 17u;         // backward: recurrent products of the candidate, if a gate scales them
const uint kPreviousCell = 18u;    // backward, in source order: c[k-1] and perhaps c[k] of the first cell state
const uint kScaledOperand = 19u;   // operand of the candidate's product, if a gate scales the operand
const uint kTileOperand = 20u;     // tiles and matrices: operand of the steps' products, by region; see tiles.glsl
const uint kMatrixTable = 21u;     // matrices: direction 0 is the table of positions, direction 1 the absmax values
const uint kTileScales = 22u;      // matrices backward: scales of the operand by region, row tile, slot and unit tile
const uint kMeeting = 23u;         // persistent: give-up flag and barrier counters; see persistent.glsl
const uint kViews = 24u;

// Parameters of the step kernels, which read them through an address. There is one block per call and phase.
struct StepParams {
    Address at[2 * kViews];            // at[2 * view + direction]
    Address weights[2];                // recurrent weights by direction; rows of `depth` contiguous elements
    Address lengths;                   // N 32-bit integers, the length of each batch row; read if kHasLengths is 1
    Strides strides[kViews];
    uint T, N, H;
    uint depth;                        // elements used of each row of the weights; for matrices, k blocks
    uint weights_row;                  // elements from one row to the next of the weights, or from one tile to the next
    uint first_depth;                  // tiles and matrices: the operand's k, or k block, that the weights begin at
};
const uint kStepPlaces = 2u * kViews + 3u;

struct StepPush {
    Address params;
    int step;
    uint steps;                        // the most steps that the dispatch makes, for kernels that make several
};
const uint kStepPushPlaces = 1u;
const uint kStepCounter = 8u;          // byte offset of `step`
const uint kStepsByte = 12u;        // byte offset of `steps`

// Specialization constants of the step kernels.
const uint kLocalSize = 0u;            // invocations of a workgroup
const uint kLanes = 1u;                // invocations that share a dot product
const uint kRows = 2u;                 // batch rows per invocation
const uint kVectorLoads = 3u;          // 1: rows of weights and operands are multiples of 4 elements
const uint kHasMask = 4u;              // 1: the recurrent operand is h * m, else h
const uint kPhase = 5u;                // 0: the step has one phase; 1, 2: first and second of two phases
const uint kGateOrder = 6u;            // slot of canonical gate g in bits 4g .. 4g+3
const uint kScalesProduct = 7u;        // 1: a gate scales the candidate's product; 0: it scales the product's operand
const uint kOptions = 8u;              // the cell's own boolean options, one bit each
const uint kKeep = 9u;   // forward: 1 stores the training state; replay.glsl: 1 stores c[k-1], 2 also c[k]
const uint kHasVectors = 10u;          // 1: the cell's learned vectors are given
const uint kHasLengths = 11u;          // 1: batch rows have lengths
const uint kHasClip = 12u;             // 1: the sums that enter the gates are clamped
const uint kActivation0 = 13u;         // five constants: one per gate in canonical order, then the cell state's
const uint kNumber0 = 18u;             // two floating-point options of the cell, two words each: see to_words
const uint kHardSigmoidAlpha = 22u;    // this and the next three: numbers, two words each
const uint kHardSigmoidBeta = 24u;
const uint kClip = 26u;
const uint kClipSlack = 28u;           // see gate_derivative
const uint kStepConstants = 30u;
const uint kMaxRows = 16u;             // largest value of kRows if invocations share dot products

// ---- tiles of a step's product in shared memory --------------------------------------------------------------------
// A workgroup consists of kTeams teams of invocations. All teams work on the same tile of batch rows x columns, and
// each team sums a part of k. An invocation has thread_rows x thread_columns of the tile's sums in registers.
// Specialization constants, after those of all step kernels.
const uint kThreadRows = kStepConstants;           // a multiple of 4
const uint kThreadColumns = kStepConstants + 1u;   // a multiple of 4
const uint kRowLanes = kStepConstants + 2u;        // invocations of a team along the rows
const uint kColumnLanes = kStepConstants + 3u;     // and along the columns
const uint kTeams = kStepConstants + 4u;
const uint kDepthBlock = kStepConstants + 5u;      // values of k that a team has in shared memory at a time
const uint kSumSlots = kStepConstants + 6u;        // tiles of sums that fit in shared memory; divides kTeams
const uint kTileConstants = kStepConstants + 7u;

// ---- weights packed for tiles: out(d, tile, k, c) with zeros past the ends -----------------------------------------
// Column c of a tile is product c % products of unit (tile * units + c / products).
// Workgroups: x and y count groups of elements of one direction; z is the direction.
struct TilePackPush {
    Address in_, out_;
    Stride in_direction, in_k, in_unit, in_slot;   // strides in elements
    uint depth, padded_depth, H;
    uint units, columns, tiles;                    // units and columns per tile
    uint products, gate_order;                     // slot of product g in bits 4g .. 4g+3
};
const uint kTilePackPlaces = 2u;

// ---- matrix units: products of square matrices of half-precision numbers with float32 sums -------------------------
// A float32 operand is scaled by a power of two and split into a high and a low half-precision part,
// v = scale * (high + low). Three products of such parts give float32's accuracy. Numbers of the 16-bit types need one
// part only, as do float32 numbers that may be rounded.
// In memory an operand consists of blocks of side x side elements in the order [i block][k block][part]. The elements
// of a block are in the order in which the invocations of a subgroup hold them, 8 consecutive ones for each invocation.
// A tagged operand consists of 32-bit words instead. Each has both parts of an element and a tag: see units.glsl.
// Specialization constants, after those of all step kernels.
const uint kMatrixSide = kStepConstants;
const uint kMatrixSubgroup = kStepConstants + 1u;   // invocations per subgroup: side * side / 8
const uint kLeftHalves = kStepConstants + 2u;   // parts of the left operand: 2, or 1 if it is or becomes half precision
const uint kRightHalves = kStepConstants + 3u;      // parts of the right operand
const uint kMatrixRows = kStepConstants + 4u;       // matrices per subgroup along the rows
const uint kMatrixColumns = kStepConstants + 5u;    // and along the columns
const uint kRowGroups = kStepConstants + 6u;        // subgroups per workgroup along the rows
const uint kColumnGroups = kStepConstants + 7u;     // along the columns
const uint kDepthGroups = kStepConstants + 8u;      // along k
const uint kScaleCount = kStepConstants + 9u;       // backward: scales of the deltas per row tile
const uint kMatrixSumSlots = kStepConstants + 10u;  // depth groups whose sums fit in shared memory: all or half of them
const uint kBlocksAhead = kStepConstants + 11u;     // k blocks loaded ahead of their products: 1 or 2
const uint kTagged = kStepConstants + 12u;          // 1: words of the left operand have a tag: see units.glsl
const uint kMatrixConstants = kStepConstants + 13u;
// Further constants of persistent loops.
const uint kKeptBlocks = kMatrixConstants;          // k blocks of weights that a subgroup keeps in registers
const uint kStreams = kMatrixConstants + 1u;        // 1: there are further k blocks, which it loads in every step
const uint kAlone = kMatrixConstants + 2u;          // 1: a workgroup computes all columns of its rows, without waits
const uint kMostTurns = kMatrixConstants + 3u;      // spin iterations after which a waiting workgroup gives up
const uint kPersistentToInitial = kMatrixConstants + 4u;   // 1: backward ends with the initial state's gradient
const uint kPersistentConstants = kMatrixConstants + 5u;
const uint kMeetingBytes = 128u;                    // from one barrier counter to the next
const uint kMatrixElements = 8u;                    // elements of a block per invocation

// The table maps positions in a block to elements (i * side + k) and back. It has four parts of side * side words: for
// the left operand the element at each position, then the position of each element; then the same for the right
// operand.
// Scales are computed from an absmax, the largest finite magnitude of a tensor, stored as the bits of a float. These
// are the indices of the time loop's absmax values.
const uint kLargestState = 0u;   // of the initial state
const uint kLargestMask = 1u;
const uint kLargestCount = 2u;
// The absmax of a right operand is stored this many bytes before its blocks.
const uint kBlocksHeader = 16u;

struct TablePush {
    Address table;
};
const uint kTablePlaces = 1u;

// Finds the absmax of `count` float32 numbers. The caller sets `out_` to zero first.
// Workgroups: x and y count groups of kLargestGroup * kLargestEach numbers.
struct LargestPush {
    Address in_, out_;
    Address lengths;                   // N 32-bit integers
    uint count;
    // If row is not 0, it is the count of numbers per step and batch row, and numbers past a row's length are skipped.
    uint row, N;
    uint padding;
};
const uint kLargestPlaces = 3u;
const uint kLargestGroup = 256u;   // invocations of a workgroup
const uint kLargestEach = 16u;     // numbers per invocation

// Packs float32 numbers into the blocks of an operand. An element is (i, k), where i is a row or column of the operand.
// If units is not 0, columns are in tiles of `columns`, and column c of a tile is product c % products of unit
// (tile * units + c / products). k consists of runs of run_padded values, of which the first run_length exist; the
// others are zeros.
// Workgroups: x and y count groups of subgroups, each of which packs kPackEach blocks; z is the batch.
struct MatrixPackPush {
    Address in_, out_, table, largest;
    Stride in_batch, in_i, in_k, in_run, in_slot;   // strides in elements
    Stride out_batch;                               // in 16-byte vectors
    uint i_count, i_blocks;
    uint run_length, run_padded, k_blocks;
    uint units, columns, products, gate_order;      // units: 0 if i is itself a row or column
    uint padding;
};
const uint kMatrixPackPlaces = 4u;
const uint kPackGroup = 256u;   // invocations of a workgroup
const uint kPackEach = 4u;      // blocks per subgroup

// C(m, n) = sum over k of A(m, k) B(n, k), with A and B in blocks.
// Workgroups: x and y count the tiles of C; z = slab * batches + batch.
struct MatrixProductPush {
    Address a, b, c, a_largest, b_largest;
    Stride a_batch, b_batch;                        // in 16-byte vectors
    Stride c_batch, c_slab;                         // in elements
    uint m, n, ldc;
    uint k_blocks, chunk;                           // slab s sums k blocks [s * chunk, min(k_blocks, (s + 1) * chunk))
    uint batches;
};
const uint kMatrixProductPlaces = 5u;

// ---- slices: all steps of some batch rows in one workgroup ---------------------------------------------------------
// Specialization constants, after those of all step kernels.
const uint kSliceLanes = kStepConstants;           // invocations that split the dot products of the same units
const uint kSliceRows = kStepConstants + 1u;       // batch rows per workgroup; a power of two
const uint kSliceRuns = kStepConstants + 2u;       // runs of 4 consecutive k per invocation and product
const uint kRegisterFours = kStepConstants + 3u;   // vec4s of an invocation's weights that stay in registers
const uint kSharedFours = kStepConstants + 4u;     // vec4s after these that stay in shared memory
const uint kSliceInvocations = kStepConstants + 5u;   // per workgroup; equals kLocalSize
const uint kToInitial = kStepConstants + 6u;       // 1: step -1 follows, for the initial state's gradient
const uint kSliceUnits = kStepConstants + 7u;      // units whose dot products the lanes split; a power of two
const uint kSliceConstants = kStepConstants + 8u;

// Packs weights for slices: out(d, (run * units + u) * products + g, invocation, c). Invocation i has element
// k = 4 * (run * lanes + i % lanes) + c of product g of unit (i / lanes * units + u). Elements past the ends are zeros.
// Workgroups: x and y count groups of elements of one direction; z is the direction.
struct SlicePackPush {
    Address in_, out_;
    Stride in_direction, in_k, in_unit, in_slot;   // strides in elements
    uint depth, H;
    uint runs, lanes, invocations;
    uint products, gate_order;                     // slot of product g in bits 4g .. 4g+3
    uint units;
};
const uint kSlicePackPlaces = 2u;

#ifdef __cplusplus
// Splits a number into two words, the low one first. A float is the first word alone.
constexpr std::array<uint, 2> to_words(float number) { return {std::bit_cast<uint>(number), 0}; }
constexpr std::array<uint, 2> to_words(double number) { return std::bit_cast<std::array<uint, 2>>(number); }
template <class T>
constexpr T from_words(const uint* words) {
    if constexpr (sizeof(T) == sizeof(double)) return std::bit_cast<T>(std::array{words[0], words[1]});
    else return std::bit_cast<T>(words[0]);
}
}  // namespace vkrnn::abi
#endif
#endif
