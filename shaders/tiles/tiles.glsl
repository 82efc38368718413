// Computes one tile of a step's product per workgroup: the sums over k of operand(k, row) times weight(k, column), for
// tile_rows batch rows and tile_columns columns. Blocks of k are dealt out to the workgroup's teams in turn. Each team
// has its own part of shared memory, so that no team waits for another before the end. Then the teams' sums are added
// in a fixed order.
// The operand is stored in regions, each in the order [k][row], so that loads of neighbouring rows are coalesced:
//   forward    regions 0 and 1: h[k-1] * m[k] of even and odd steps; region 2: the operand of the second of two phases
//   backward   regions 0 and 1: the deltas of even and odd steps
// Rows past the last one have arbitrary contents; their sums are not used.
#ifndef VKRNN_TILES_GLSL
#define VKRNN_TILES_GLSL
#include "common/step.glsl"
#include "common/tile.glsl"
#include "tiles/tiles_abi.h"

SPECIALIZED(kThreadRows, uint, thread_rows, 4)
SPECIALIZED(kThreadColumns, uint, thread_columns, 4)
SPECIALIZED(kRowLanes, uint, row_lanes, 2)
SPECIALIZED(kColumnLanes, uint, column_lanes, 2)
SPECIALIZED(kTeams, uint, teams, 2)
SPECIALIZED(kDepthBlock, uint, depth_block, 4)
SPECIALIZED(kSumSlots, uint, sum_slots, 1)

CONSTANT uint tile_rows = thread_rows * row_lanes;
CONSTANT uint tile_columns = thread_columns * column_lanes;
CONSTANT uint team_size = row_lanes * column_lanes;
CONSTANT uint invocations = team_size * teams;
// The same sizes in vec4s.
CONSTANT uint thread_row_fours = thread_rows / 4, thread_column_fours = thread_columns / 4;
CONSTANT uint row_fours = tile_rows / 4, column_fours = tile_columns / 4;
CONSTANT uint operand_fours = depth_block * row_fours, weight_fours = depth_block * column_fours;   // per block
CONSTANT uint operand_loads = (operand_fours + team_size - 1) / team_size;                          // per invocation
CONSTANT uint weight_loads = (weight_fours + team_size - 1) / team_size;
CONSTANT uint block_fours = teams * (operand_fours + weight_fours);
CONSTANT uint sum_fours = tile_rows * column_fours;
CONSTANT uint slot_fours = sum_slots * sum_fours;
SHARED_ARRAY(Real4, scratch, [block_fours > slot_fours ? block_fours : slot_fours])

// Returns the index of an invocation. The invocations of a team are consecutive and in the same subgroup.
INLINE uint invocation() { return gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID; }

INLINE Address region_address(Params p, uint direction, uint region) {
    return element(p.params.at[2 * kTileOperand + direction], region * p.params.strides[kTileOperand].step[direction]);
}

INLINE void store_operand(Params p, uint direction, uint region, uint n, uint slot, uint j, Real value) {
    store(unit_address(p, kTileOperand, region_address(p, direction, region), slot, j), n, value);
}

// Computes the tile's sums and leaves them in shared memory for tile_sum.
INLINE void multiply(Params p, Tile tile, uint region) {
    uint team = invocation() / team_size, lane = invocation() % team_size;
    uint row_lane = lane / column_lanes, column_lane = lane % column_lanes;
    uint rows_apart = p.params.strides[kTileOperand].unit;
    Address operand = element(region_address(p, tile.direction, region), Stride(p.params.first_depth) * rows_apart);
    Address weights = element(p.params.weights[tile.direction], Stride(tile.column_tile) * p.params.weights_row);
    uint operand_at = team * (operand_fours + weight_fours), weight_at = operand_at + operand_fours;

    Real4 sums[thread_rows][thread_column_fours];
    UNROLL for (uint r = 0; r < thread_rows; ++r)
        UNROLL for (uint c = 0; c < thread_column_fours; ++c) sums[r][c] = Real4(0);

    Real4 next_operand[operand_loads], next_weight[weight_loads];
    uint blocks = (p.params.depth + depth_block - 1) / depth_block;
    uint turns = (blocks + teams - 1) / teams;
    for (uint turn = 0; turn <= turns; ++turn) {
        if (turn > 0) {
            subgroupBarrier();
            UNROLL for (uint i = 0; i < operand_loads; ++i) {
                uint four = i * team_size + lane;
                if (four < operand_fours) scratch[operand_at + four] = next_operand[i];
            }
            UNROLL for (uint i = 0; i < weight_loads; ++i) {
                uint four = i * team_size + lane;
                if (four < weight_fours) scratch[weight_at + four] = next_weight[i];
            }
            subgroupMemoryBarrierShared();
            subgroupBarrier();
        }
        uint k0 = (turn * teams + team) * depth_block;
        if (turn < turns) {
            UNROLL for (uint i = 0; i < operand_loads; ++i) {
                uint four = i * team_size + lane, k = k0 + four / row_fours;
                bool there = four < operand_fours && k < p.params.depth;
                next_operand[i] = Real4(0);
                if (there)
                    next_operand[i] = load4(operand, Stride(k) * rows_apart + tile.first_row + four % row_fours * 4);
            }
            UNROLL for (uint i = 0; i < weight_loads; ++i) {
                uint four = i * team_size + lane;
                bool there = four < weight_fours && k0 < p.params.depth;
                next_weight[i] = Real4(0);
                if (there) next_weight[i] = load4(weights, Stride(k0) * tile_columns + four * 4);
            }
        }
        if (turn > 0)
            UNROLL for (uint k = 0; k < depth_block; ++k) {
                Real4 a[thread_row_fours], b[thread_column_fours];
                UNROLL for (uint r = 0; r < thread_row_fours; ++r)
                    a[r] = scratch[operand_at + k * row_fours + r * row_lanes + row_lane];
                UNROLL for (uint c = 0; c < thread_column_fours; ++c)
                    b[c] = scratch[weight_at + k * column_fours + c * column_lanes + column_lane];
                UNROLL for (uint r = 0; r < thread_rows; ++r)
                    UNROLL for (uint c = 0; c < thread_column_fours; ++c) sums[r][c] += a[r / 4][r % 4] * b[c];
            }
    }

    // While there are more teams than slots for sums, the last teams add their sums to those of the teams before them.
    uint slot_at = team % sum_slots * sum_fours;
    for (uint left = teams; left > sum_slots; left -= sum_slots) {
        barrier();
        if (team < left && team >= left - sum_slots)
            UNROLL for (uint r = 0; r < thread_rows; ++r)
                UNROLL for (uint c = 0; c < thread_column_fours; ++c)
                    scratch[slot_at + (r / 4 * row_lanes * 4 + row_lane * 4 + r % 4) * column_fours + c * column_lanes +
                            column_lane] = sums[r][c];
        barrier();
        if (team < left - sum_slots && team + 2 * sum_slots >= left)
            UNROLL for (uint r = 0; r < thread_rows; ++r)
                UNROLL for (uint c = 0; c < thread_column_fours; ++c)
                    sums[r][c] += scratch[slot_at + (r / 4 * row_lanes * 4 + row_lane * 4 + r % 4) * column_fours +
                                          c * column_lanes + column_lane];
    }
    barrier();
    if (team < sum_slots)
        UNROLL for (uint r = 0; r < thread_rows; ++r)
            UNROLL for (uint c = 0; c < thread_column_fours; ++c)
                scratch[slot_at + (r / 4 * row_lanes * 4 + row_lane * 4 + r % 4) * column_fours + c * column_lanes +
                        column_lane] = sums[r][c];
    barrier();
}

INLINE Real tile_sum(uint row, uint column) {
    Real sum = 0.0f;
    UNROLL for (uint slot = 0; slot < sum_slots; ++slot)
        sum += scratch[slot * sum_fours + row * column_fours + column / 4][column % 4];
    return sum;
}

#endif
