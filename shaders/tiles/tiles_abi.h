// What C++ and the kernels of the strategy `tiles` share. See common/abi.h.
#ifndef VKRNN_TILES_ABI_H
#define VKRNN_TILES_ABI_H
#include "common/step_abi.h"

#ifdef __cplusplus
namespace vkrnn::abi {
#endif

// The product of a step is computed in tiles in shared memory.
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

// The view of the operand of the steps' products, by region: see tiles.glsl.
const uint kTileOperand = kOwnView;

// Packs weights for tiles: out(part, tile, k, c) with zeros past the ends. A part is a head of a direction.
// Column c of a tile is product c % products of unit (tile * units + c / products). The sum over k goes over the H units
// of a part, in one slot after the other.
// Tensor 0 is `in_`. Workgroups: x and y count groups of four columns of one part; z is the part.
struct TilePackPush {
    Address in_, out_;
    Stride in_direction, in_head, in_k, in_k_slot, in_unit, in_slot;   // strides in elements
    uint depth, padded_depth, H, heads;
    uint units, columns, tiles;                    // units and columns per tile
    uint products, gate_order;                     // slot of product g in bits 4g .. 4g+3
};

#ifdef __cplusplus
}  // namespace vkrnn::abi
#endif
#endif
