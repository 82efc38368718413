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
#include "tile_step/tile.glsl"
#include "tiles/tiles_abi.h"

SPECIALIZED(kThreadRows, uint, thread_rows, 4)
SPECIALIZED(kThreadColumns, uint, thread_columns, 4)
SPECIALIZED(kRowLanes, uint, row_lanes, 2)
SPECIALIZED(kColumnLanes, uint, column_lanes, 2)
SPECIALIZED(kTeams, uint, teams, 2)
SPECIALIZED(kDepthBlock, uint, depth_block, 4)
SPECIALIZED(kSumSlots, uint, sum_slots, 1)

GENERIC_REFERENCE(Operands, Real4, value, 4 * kElementBytes)

CONSTANT uint tile_rows = thread_rows * row_lanes;
CONSTANT uint tile_columns = thread_columns * column_lanes;
CONSTANT uint team_size = row_lanes * column_lanes;
CONSTANT uint invocations = team_size * teams;
// The same sizes in vec4s.
CONSTANT uint thread_row_vec4s = thread_rows / 4, thread_column_vec4s = thread_columns / 4;
CONSTANT uint row_vec4s = tile_rows / 4, column_vec4s = tile_columns / 4;
CONSTANT uint operand_vec4s = depth_block * row_vec4s, weight_vec4s = depth_block * column_vec4s;   // per block
CONSTANT uint operand_loads = (operand_vec4s + team_size - 1) / team_size;                          // per invocation
CONSTANT uint weight_loads = (weight_vec4s + team_size - 1) / team_size;
CONSTANT uint whole_operand_loads = operand_vec4s / team_size, whole_weight_loads = weight_vec4s / team_size;
CONSTANT uint block_vec4s = teams * (operand_vec4s + weight_vec4s);
CONSTANT uint sum_vec4s = tile_rows * column_vec4s;
CONSTANT uint slot_vec4s = sum_slots * sum_vec4s;
SHARED_ARRAY(Real4, scratch, [block_vec4s > slot_vec4s ? block_vec4s : slot_vec4s])

// Returns the index of an invocation. The invocations of a team are consecutive and in the same subgroup.
INLINE uint invocation() { return gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID; }

INLINE Address region_address(Params p, uint direction, uint region) {
    return element(own_address(p, kTileOperand, direction), region * step_stride(p, kTileOperand, direction));
}

INLINE void store_operand(Params p, uint direction, uint region, uint n, uint slot, uint j, Real value) {
    store(unit_address(p, kTileOperand, region_address(p, direction, region), slot, j), n, value);
}

// Computes the tile's sums and leaves them in shared memory for tile_sum.
INLINE void multiply(Params p, Tile tile, uint region) {
    uint team = invocation() / team_size, lane = invocation() % team_size;
    uint row_lane = lane / column_lanes, column_lane = lane % column_lanes;
    uint rows_apart = params_of(p).strides[kTileOperand].unit;
    // Where this invocation's loads of its team's next block begin.
    uint first_k = params_of(p).first_depth + team * depth_block;
    Address operand = element(region_address(p, tile.direction, region), Stride(first_k) * rows_apart + tile.first_row);
    Address next_operand_at[operand_loads];   // moved on with each block, because finding them takes many instructions
    UNROLL for (uint i = 0; i < operand_loads; ++i) {
        uint index = i * team_size + lane;
        next_operand_at[i] = element(operand, Stride(index / row_vec4s) * rows_apart + index % row_vec4s * 4);
    }
    Address next_weight_at = element(weights_address(p, tile.direction),
                                     Stride(tile.column_tile) * params_of(p).weights_row +
                                         Stride(team) * depth_block * tile_columns + lane * 4);
    Stride operand_step = Stride(teams * depth_block) * rows_apart, weight_step = teams * depth_block * tile_columns;
    uint operand_at = team * (operand_vec4s + weight_vec4s), weight_at = operand_at + operand_vec4s;

    Real4 sums[thread_rows][thread_column_vec4s];
    UNROLL for (uint r = 0; r < thread_rows; ++r)
        UNROLL for (uint c = 0; c < thread_column_vec4s; ++c) sums[r][c] = Real4(0);

    Real4 next_operand[operand_loads], next_weight[weight_loads];
    uint blocks = (params_of(p).depth + depth_block - 1) / depth_block;
    uint turns = (blocks + teams - 1) / teams;
    for (uint turn = 0; turn <= turns; ++turn) {
        if (turn > 0) {
            subgroupBarrier();
            UNROLL for (uint i = 0; i < operand_loads; ++i) {
                uint index = i * team_size + lane;
                if (index < operand_vec4s) scratch[operand_at + index] = next_operand[i];
            }
            UNROLL for (uint i = 0; i < weight_loads; ++i) {
                uint index = i * team_size + lane;
                if (index < weight_vec4s) scratch[weight_at + index] = next_weight[i];
            }
            subgroupMemoryBarrierShared();
            subgroupBarrier();
        }
        uint k0 = (turn * teams + team) * depth_block;
        UNROLL for (uint i = 0; i < operand_loads; ++i) {
            uint index = i * team_size + lane;
            next_operand[i] = Real4(0);
            if ((i < whole_operand_loads || index < operand_vec4s) && k0 + index / row_vec4s < params_of(p).depth)
                next_operand[i] = Operands(next_operand_at[i]).value;
        }
        UNROLL for (uint i = 0; i < weight_loads; ++i) {
            next_weight[i] = Real4(0);
            if ((i < whole_weight_loads || i * team_size + lane < weight_vec4s) && k0 < params_of(p).depth)
                next_weight[i] = Operands(element(next_weight_at, i * team_size * 4)).value;
        }
        UNROLL for (uint i = 0; i < operand_loads; ++i) next_operand_at[i] = element(next_operand_at[i], operand_step);
        next_weight_at = element(next_weight_at, weight_step);
        if (turn > 0)
            UNROLL for (uint k = 0; k < depth_block; ++k) {
                Real4 a[thread_row_vec4s], b[thread_column_vec4s];
                UNROLL for (uint r = 0; r < thread_row_vec4s; ++r)
                    // As signed numbers, because CUDA's compiler then adds the constant part when it compiles.
                    a[r] = scratch[int(operand_at + row_lane) + int(k * row_vec4s + r * row_lanes)];
                UNROLL for (uint c = 0; c < thread_column_vec4s; ++c)
                    b[c] = scratch[int(weight_at + column_lane) + int(k * column_vec4s + c * column_lanes)];
                UNROLL for (uint r = 0; r < thread_rows; ++r)
                    UNROLL for (uint c = 0; c < thread_column_vec4s; ++c) sums[r][c] += a[r / 4][r % 4] * b[c];
            }
    }

    // While there are more teams than slots for sums, the last teams add their sums to those of the teams before them.
    uint slot_at = team % sum_slots * sum_vec4s;
    for (uint left = teams; left > sum_slots; left -= sum_slots) {
        barrier();
        if (team < left && team >= left - sum_slots)
            UNROLL for (uint r = 0; r < thread_rows; ++r)
                UNROLL for (uint c = 0; c < thread_column_vec4s; ++c)
                    scratch[slot_at + (r / 4 * row_lanes * 4 + row_lane * 4 + r % 4) * column_vec4s + c * column_lanes +
                            column_lane] = sums[r][c];
        barrier();
        if (team < left - sum_slots && team + 2 * sum_slots >= left)
            UNROLL for (uint r = 0; r < thread_rows; ++r)
                UNROLL for (uint c = 0; c < thread_column_vec4s; ++c)
                    sums[r][c] += scratch[slot_at + (r / 4 * row_lanes * 4 + row_lane * 4 + r % 4) * column_vec4s +
                                          c * column_lanes + column_lane];
    }
    barrier();
    if (team < sum_slots)
        UNROLL for (uint r = 0; r < thread_rows; ++r)
            UNROLL for (uint c = 0; c < thread_column_vec4s; ++c)
                scratch[slot_at + (r / 4 * row_lanes * 4 + row_lane * 4 + r % 4) * column_vec4s + c * column_lanes +
                        column_lane] = sums[r][c];
    barrier();
}

INLINE Real tile_sum(uint row, uint column) {
    Real sum = 0.0f;
    UNROLL for (uint slot = 0; slot < sum_slots; ++slot)
        sum += scratch[slot * sum_vec4s + row * column_vec4s + column / 4][column % 4];
    return sum;
}

#endif
