// Structs and numbers that C++ and GLSL must agree on; both compilers read this file.
// Structs hold 8-byte members first and no vectors, so that std430 and C++ lay them out alike.
#ifndef VKRNN_ABI_H
#define VKRNN_ABI_H

#ifdef __cplusplus
#include <array>
#include <bit>
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

// ---- matrix product: C(m, n) = sum over k of A(m, k) B(n, k), per batch -------------------------------------------
// Specialization constants.
const uint kGemmAColumns = 0u;      // 1: A is stored with m contiguous (element k * lda + m), else m * lda + k
const uint kGemmBColumns = 1u;      // likewise B, with n for m
const uint kGemmVectors = 2u;       // 1: everything is a multiple of 4 elements
const uint kGemmLanes = 3u;         // register products: invocations of a workgroup, which is one subgroup
// Tiles of C, by strategy: what an invocation forms, and what a workgroup forms.
const uint kRegisterTileM = 16u;
const uint kRegisterTileN = 4u;
const uint kTiledTile = 64u;
const uint kTiledInvocations = 256u;   // of a workgroup of tiled products

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
const uint kConvertEach = 8u;       // elements of an invocation
// Workgroups: x, y number invocations in groups. Both ends are multiples of 4 bytes.
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
// If batch rows have lengths of their own, a reversed row starts at its own end. Its steps from its length on stand for
// the rows of the time axis past its end, which are zeros in every result.
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
const uint kCell = 6u;             // by step the cell states, those besides h: each is a slot
const uint kInitHidden = 7u;
const uint kInitCell = 8u;
const uint kOperand = 9u;          // backward: what the recurrent product multiplied, h[k-1] * m[k]
const uint kUpstream = 10u;        // backward: gradient of h by step
const uint kDelta = 11u;           // backward: gradient of the gates' pre-activations
const uint kRecurrentDelta = 12u;  // backward: gradient of the recurrent products (the deltas themselves, for most cells)
const uint kCarryHidden = 13u;     // backward: gradient of the states carried to the step before
const uint kCarryCell = 14u;
const uint kLastHidden = 15u;      // backward: gradient of the states after the last step
const uint kLastCell = 16u;
const uint kProduct = 17u;         // backward: the recurrent products of the candidate, where they are scaled
const uint kPreviousCell = 18u;    // backward: the first cell state c[k-1] and perhaps c[k], a slot each, in source order
const uint kScaledOperand = 19u;   // what the candidate's product multiplies, where a gate scales that
const uint kTileOperand = 20u;     // tiles: what the products of the steps multiply, by region: see tiles.glsl
const uint kMatrixTable = 21u;     // matrices: as direction 0 the table, as direction 1 the largest magnitudes
const uint kTileScales = 22u;      // matrices backward: scales of the operand by region, row tile, slot and unit tile
const uint kMeeting = 23u;         // persistent: where workgroups meet, see persistent.glsl
const uint kViews = 24u;

// Read through its address; one block per call and phase.
struct StepParams {
    Address at[2 * kViews];            // at[2 * view + direction]
    Address weights[2];                // of the recurrent product, by direction: rows of `depth` contiguous elements
    Address lengths;                   // N 32-bit integers: the steps of each batch row; read where kHasLengths is 1
    Strides strides[kViews];
    uint T, N, H;
    uint depth;                        // elements in a row of the weights that take part
    uint weights_row;                  // elements from row to row of the weights; of tiles, from tile to tile
    uint first_depth;                  // of tiles: the operand's k that the weights' first one goes with
};
const uint kStepPlaces = 2u * kViews + 3u;

struct StepPush {
    Address params;
    int step;
    uint steps;                        // how many steps from `step` on the dispatch makes at most, where it makes several
};
const uint kStepPushPlaces = 1u;
const uint kStepCounter = 8u;          // byte of `step`
const uint kStepsByte = 12u;        // byte of `steps`

// Specialization constants of the step kernels.
const uint kLocalSize = 0u;            // invocations of a workgroup
const uint kLanes = 1u;                // invocations that share a dot product
const uint kRows = 2u;                 // batch rows per invocation
const uint kVectorLoads = 3u;          // 1: rows of weights and operands are multiples of 4 elements
const uint kHasMask = 4u;              // 1: the recurrent operand is h * m, else h
const uint kPhase = 5u;                // 0: the only phase; 1, 2: first and second of two
const uint kGateOrder = 6u;            // slot of canonical gate g in bits 4g .. 4g+3
const uint kScalesProduct = 7u;        // 1: a gate scales the candidate's product, 0: what that product multiplies
const uint kOptions = 8u;              // boolean options of the cell alone, a bit each
const uint kKeep = 9u;                 // 1: forward writes what training keeps; replay writes c[k-1], with 2 also c[k]
const uint kHasVectors = 10u;          // 1: the cell's learned vectors are there
const uint kHasLengths = 11u;          // 1: batch rows end at steps of their own
const uint kHasClip = 12u;             // 1: the sums that enter the gates are clamped
const uint kActivation0 = 13u;         // five: one per gate in canonical order, then the cell state's
const uint kNumber0 = 18u;             // two floating-point options of the cell, two words each: see to_words
const uint kHardSigmoidAlpha = 22u;    // numbers, two words each
const uint kHardSigmoidBeta = 24u;
const uint kClip = 26u;
const uint kClipSlack = 28u;           // see gate_derivative
const uint kStepConstants = 30u;
const uint kMaxRows = 16u;             // largest value of constant kRows where lanes share a dot product

// ---- tiles of a step's product in shared memory -----------------------------------------------------------------------
// A workgroup is so many teams of invocations. Each team sums some of the k for a tile of batch rows x columns, where an
// invocation has thread_rows x thread_columns of it in registers.
// Specialization constants, after those of all step kernels.
const uint kThreadRows = kStepConstants;           // a multiple of 4
const uint kThreadColumns = kStepConstants + 1u;   // a multiple of 4
const uint kRowLanes = kStepConstants + 2u;        // invocations of a team side by side along the rows
const uint kColumnLanes = kStepConstants + 3u;     // and along the columns
const uint kTeams = kStepConstants + 4u;
const uint kDepthBlock = kStepConstants + 5u;      // k that a team has in shared memory at a time
const uint kSumSlots = kStepConstants + 6u;        // tiles of sums that fit in shared memory; divides the teams
const uint kTileConstants = kStepConstants + 7u;

// ---- weights in the order of tiles: out(d, tile, k, c) with zeros past the ends ----------------------------------------
// Column c of a tile is product c % products of unit tile * units + c / products.
// Workgroups: x, y number elements of one direction in groups; z is the direction.
struct TilePackPush {
    Address in_, out_;
    Stride in_direction, in_k, in_unit, in_slot;   // strides in elements
    uint depth, padded_depth, H;
    uint units, columns, tiles;                    // units and columns of a tile
    uint products, gate_order;                     // slot of product g in bits 4g .. 4g+3
};
const uint kTilePackPlaces = 2u;

// ---- matrix units: products of square matrices of half-precision numbers with float32 sums -----------------------------
// A float32 operand is scaled by a power of two and split into two halves, v = scale * (high + low), of which three
// products give float32's accuracy. Numbers of the 16-bit types are one half by themselves, and float32 numbers that may
// be rounded become one. An operand lies in memory by blocks of side x side, [i block][k block][half]; within a block stand
// the elements as the invocations of a subgroup hold them, a vector of 8 for each.
// A tagged operand has words instead, which have both halves of an element and a tag: see units.glsl.
// Specialization constants, after those of all step kernels.
const uint kMatrixSide = kStepConstants;
const uint kMatrixSubgroup = kStepConstants + 1u;   // invocations of a subgroup; side * side / 8
const uint kLeftHalves = kStepConstants + 2u;       // of the left operand: 2, or 1 where its numbers are or become halves
const uint kRightHalves = kStepConstants + 3u;      // of the right operand
const uint kMatrixRows = kStepConstants + 4u;       // matrices of a subgroup along the rows
const uint kMatrixColumns = kStepConstants + 5u;    // and along the columns
const uint kRowGroups = kStepConstants + 6u;        // subgroups of a workgroup along the rows
const uint kColumnGroups = kStepConstants + 7u;     // along the columns
const uint kDepthGroups = kStepConstants + 8u;      // along the sums
const uint kScaleCount = kStepConstants + 9u;       // backward: scales of a row tile's deltas
const uint kMatrixSumSlots = kStepConstants + 10u;  // depth groups whose sums fit in shared memory: all, or half of them
const uint kBlocksAhead = kStepConstants + 11u;     // k blocks that are loaded ahead of their products, 1 or 2
const uint kTagged = kStepConstants + 12u;          // 1: words of the left operand tell at which step they were stored
const uint kMatrixConstants = kStepConstants + 13u;
// The constants of a persistent loop follow those.
const uint kKeptBlocks = kMatrixConstants;          // k blocks of weights that a subgroup keeps in registers
const uint kStreams = kMatrixConstants + 1u;        // 1: there are others, which it loads in every step
const uint kAlone = kMatrixConstants + 2u;          // 1: a workgroup has all columns of its rows and waits for no other
const uint kMostTurns = kMatrixConstants + 3u;      // after which a workgroup that waits gives up
const uint kPersistentToInitial = kMatrixConstants + 4u;   // 1: backward goes on to the gradient of the initial state
const uint kPersistentConstants = kMatrixConstants + 5u;
const uint kMeetingBytes = 128u;                    // from one counter to the next
const uint kMatrixElements = 8u;                    // of a block that one invocation holds

// The table has four parts of side * side words: for the left operand, then for the right one, which element i * side + k
// stands at a position, then the position of an element.
// Scales come from magnitudes, which are kept as the bits of floats. These are the loop's.
const uint kLargestState = 0u;   // of the initial state
const uint kLargestMask = 1u;
const uint kLargestCount = 2u;
// A right operand's blocks are preceded by the largest magnitude of their numbers.
const uint kBlocksHeader = 16u;  // bytes

struct TablePush {
    Address table;
};
const uint kTablePlaces = 1u;

// Finds the largest finite magnitude of `count` float32 numbers; `out_` is zero before. Workgroups: x, y.
struct LargestPush {
    Address in_, out_;
    Address lengths;                   // N 32-bit integers
    uint count;
    uint row, N;                       // numbers of a batch row in a step, where those past the lengths are left out; else row is 0
    uint padding;
};
const uint kLargestPlaces = 3u;
const uint kLargestGroup = 256u;   // invocations of a workgroup
const uint kLargestEach = 16u;     // numbers of an invocation

// Blocks of an operand from float32 numbers. Element (i, k): i is a row or column; where tiles have `products` columns for
// each unit, column c of a tile of `columns` is product c % products of unit tile * units + c / products. k counts in runs
// of run_padded, of which run_length are there.
// Workgroups: x, y number subgroups, each of which makes some blocks; z is the batch.
struct MatrixPackPush {
    Address in_, out_, table, largest;
    Stride in_batch, in_i, in_k, in_run, in_slot;   // strides in elements
    Stride out_batch;                               // in 16-byte vectors
    uint i_count, i_blocks;
    uint run_length, run_padded, k_blocks;
    uint units, columns, products, gate_order;      // units: 0 where an i is a row or column itself
    uint padding;
};
const uint kMatrixPackPlaces = 4u;
const uint kPackGroup = 256u;   // invocations of a workgroup
const uint kPackEach = 4u;      // blocks of a subgroup

// C(m, n) = sum over k of A(m, k) B(n, k), from blocks. Workgroups: x, y number the tiles of C; z = slab * batches + batch.
struct MatrixProductPush {
    Address a, b, c, a_largest, b_largest;
    Stride a_batch, b_batch;                        // in 16-byte vectors
    Stride c_batch, c_slab;                         // in elements
    uint m, n, ldc;
    uint k_blocks, chunk;                           // slab s sums k blocks [s * chunk, min(k_blocks, (s + 1) * chunk))
    uint batches;
};
const uint kMatrixProductPlaces = 5u;

// ---- slices: all steps of some batch rows in one workgroup -------------------------------------------------------------
// Specialization constants, after those of all step kernels.
const uint kSliceLanes = kStepConstants;           // invocations that share products
const uint kSliceRows = kStepConstants + 1u;       // batch rows of a workgroup; a power of two
const uint kSliceRuns = kStepConstants + 2u;       // runs of 4 k that an invocation has of each product
const uint kRegisterFours = kStepConstants + 3u;   // how many of an invocation's fours of weights stay in registers
const uint kSharedFours = kStepConstants + 4u;     // and how many after these in shared memory
const uint kSliceInvocations = kStepConstants + 5u;   // of a workgroup: kLocalSize again
const uint kToInitial = kStepConstants + 6u;       // 1: after step 0 there is step -1, for the initial state's gradient
const uint kSliceUnits = kStepConstants + 7u;      // units whose products an invocation forms a part of; a power of two
const uint kSliceConstants = kStepConstants + 8u;

// Weights in the order of slices: out(d, (run * units + u) * products + g, invocation, c), where invocation i has element
// k = 4 * (run * lanes + i % lanes) + c of product g of unit i / lanes * units + u; zeros past the ends.
// Workgroups: x, y number elements of one direction in groups; z is the direction.
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
// A float stands in the first of two words, a double in both, the low one first.
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
