// A slice consists of some batch rows of one direction or part (see step_abi.h). One workgroup runs all of a slice's
// steps, so that workgroups never wait for each other. The operand of a step's products is in shared memory, in two sides: a step reads one and
// fills the other for the next step, so that one barrier per step is enough. The weights never change. An invocation
// therefore loads as many as possible of its weights only once: the first into registers, further ones into shared
// memory.
#ifndef VKRNN_SLICES_GLSL
#define VKRNN_SLICES_GLSL
#include "common/cell_step.glsl"
#include "slices/slices_abi.h"

SPECIALIZED(kSliceLanes, uint, slice_lanes, 1)
SPECIALIZED(kSliceUnits, uint, slice_units, 1)
SPECIALIZED(kSliceRows, uint, slice_rows, 1)
SPECIALIZED(kSliceRuns, uint, slice_runs, 1)
SPECIALIZED(kRegisterVec4s, uint, register_vec4s, 0)
SPECIALIZED(kSharedVec4s, uint, shared_vec4s, 0)
SPECIALIZED(kSliceInvocations, uint, invocations, 1)
SPECIALIZED(kSliceHeads, uint, slice_heads, 1)

CONSTANT uint row_vec4s = slice_runs * slice_lanes;      // of one row of the operand
CONSTANT uint side_vec4s = slice_heads * slice_rows * row_vec4s;
// slice_lanes lanes split the dot products of slice_units units. They also share the cells of these units in all rows:
// shared_cells cells. Either each lane has several cells, or the first lanes have one each.
CONSTANT uint shared_cells = slice_rows * slice_units;
CONSTANT uint cells = shared_cells > slice_lanes ? shared_cells / slice_lanes : 1;
CONSTANT bool loads_weights = register_vec4s + shared_vec4s < slice_runs * slice_units * PRODUCTS;   // in each step
CONSTANT uint kMostLevels = 7;   // levels of the sum over lanes: a subgroup has at most 128 invocations
// Steps per iteration of the time loop. An invocation also loads its inputs this many steps ahead.
CONSTANT uint turns = 2;

SHARED_ARRAY(Real4, sides, [side_vec4s > 0 ? 2 * side_vec4s : 1])
SHARED_ARRAY(Real4, shared_weights, [shared_vec4s > 0 ? shared_vec4s * invocations : 1])

// State that lives across steps, here and in the drivers, consists of scalars and arrays of scalars only. After
// inlining and unrolling, all their indices are constants, so they stay in registers. A compiler may keep structs and
// arrays of structs in memory, and then every step would wait for memory.
Real4 register_weights[register_vec4s > 0 ? register_vec4s : 1];
bool there[cells];                // whether the invocation has this cell
int ends[cells];                  // length of the cell's batch row
Real sums[cells][PRODUCTS];       // results of the last product

// The position of an invocation. Invocations that share units are consecutive within a subgroup.
struct Place {
    uint invocation, lane;
    uint direction, first_row;   // of the slice; `direction` may be a part
    uint first_unit;             // of the units that the lanes share
    uint head, head_units;       // the head of these units, and how many units a head has
    uint own_cell;               // index of the invocation's first cell among the shared cells
    bool owns;                   // whether the invocation has a cell at all
};

// Workgroups: x and y count slices; z is the direction or part.
INLINE Place this_place(Params p) {
    uint invocation = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    uint lane = invocation % slice_lanes;
    uint own_cell = 0;
    UNROLL for (uint level = 0; level < kMostLevels; ++level)
        if ((lane & 1 << level) != 0) own_cell += shared_cells >> (level + 1);
    uint first_unit = invocation / slice_lanes * slice_units, head = 0, head_units = params_of(p).H;
    if (has_heads != 0) {
        head_units = params_of(p).head_units;
        head = min(first_unit / head_units, slice_heads - 1);
    }
    return Place(invocation, lane, gl_WorkGroupID.z, linear_group() * slice_rows, first_unit, head, head_units, own_cell,
                 lane < shared_cells);
}

// Return the row within the slice, and the unit, of an invocation's cell.
INLINE uint row_of(Place place, const uint cell) { return (place.own_cell + cell) / slice_units; }
INLINE uint unit_of(Place place, const uint cell) { return place.first_unit + (place.own_cell + cell) % slice_units; }

// Returns the element of an invocation's cell. If there is no such cell, the nearest element stands in for it; its
// results are not stored.
INLINE Element element_of(Params p, Place place, const uint cell, int step) {
    return Element(place.direction, min(place.first_row + row_of(place, cell), params_of(p).N - 1),
                   min(unit_of(place, cell), params_of(p).H - 1), step);
}

INLINE void locate_cell(Params p, Place place, const uint cell) {
    uint n = place.first_row + row_of(place, cell);
    there[cell] = place.owns && n < params_of(p).N && unit_of(place, cell) < params_of(p).H;
    ends[cell] = length_of(p, min(n, params_of(p).N - 1));
}

// Returns the address of a cell's element of a view at a step, or at the row's last step if the step is past it. Called
// before the loop: reading the parameters and computing most of an address would otherwise take most of a step.
INLINE Address cell_address(Params p, uint view, Element e, int step, int end) {
    end = max(end, 1);
    step = min(step, end - 1);
    if (has_lengths != 0 && step_stride(p, view, e.direction) < 0) step += int(params_of(p).T) - end;
    return unit_address(p, view, time_address(p, view, e.direction, step, e.n), 0, e.j);
}

INLINE void move(INOUT(Address) at, int bytes, bool moves) {
    if (moves) at += Address(int64_t(bytes));
}

INLINE Address gate_at(Address at, uint gate, uint bytes) { return at + Address(slot_of(gate) * bytes); }
// `state` is a cell state.
INLINE Address state_at(Address at, uint state, uint bytes) { return at + Address((state - 1) * bytes); }

// Resets, fetched ahead as the other inputs: where to load the next one, the distances in bytes, and the converted ones.
Loaded factor_ahead[turns][cells], start_ahead[turns][cells][CELL_STATES];
Address factor_at[cells], start_at[cells], start_cell_at[cells];
int factor_step, start_step, start_cell_step;
int lag;   // of the rows of resets behind the steps
Real factor[cells], start[cells][CELL_STATES];

INLINE void set_reset_steps(Params p, uint direction) {
    lag = reset_lag(p, direction);
    factor_step = has_reset != 0 ? step_bytes(p, kReset, direction) : 0;
    start_step = has_reset != 0 ? step_bytes(p, kResetState, direction) : 0;
    start_cell_step = has_reset != 0 && CELL_STATES > 1 ? step_bytes(p, kResetCell, direction) : 0;
}

INLINE void start_resets(Params p, const uint cell, Element e, int step, int end) {
    factor_at[cell] = cell_address(p, kReset, e, step, end);
    start_at[cell] = cell_address(p, kResetState, e, step, end);
    if (CELL_STATES > 1) start_cell_at[cell] = cell_address(p, kResetCell, e, step, end);
}

// `sign`: 1 if the steps go forward, else -1.
INLINE void read_reset_ahead(const uint turn, const uint cell, const int sign, bool moves) {
    factor_ahead[turn][cell] = fetch_tensor(kReset, factor_at[cell], 0);
    move(factor_at[cell], sign * factor_step, moves);
    start_ahead[turn][cell][0] = fetch_tensor(kResetState, start_at[cell], 0);
    move(start_at[cell], sign * start_step, moves);
    UNROLL for (uint s = 1; s < RESET_STARTS; ++s)
        start_ahead[turn][cell][s] = fetch_tensor(kResetCell, start_cell_at[cell], 0);
    if (CELL_STATES > 1) move(start_cell_at[cell], sign * start_cell_step, moves);
}

INLINE void take_reset(const uint turn, const uint cell) {
    factor[cell] = has_reset != 0 ? value_of(kReset, factor_ahead[turn][cell]) : 1.0f;
    UNROLL for (uint s = 0; s < CELL_STATES; ++s)
        start[cell][s] = has_reset != 0 ? start_of(s, start_ahead[turn][cell][s]) : 0.0f;
}

// Returns the address of an invocation's first weights. Its others are at constant offsets from there.
INLINE Address own_weights(Params p, Place place) {
    return element(weights_address(p, place.direction), place.invocation * 4);
}

// Waits until the operand of the next step's products is complete.
INLINE void wait_for_operand() {
    if (slice_runs > 0) barrier();
}

// Prepares the first step: loads the weights that stay, and fills the operand with zeros.
INLINE void start_slice(Params p, Place place) {
    Address weights = own_weights(p, place);
    UNROLL for (uint index = 0; index < register_vec4s; ++index)
        register_weights[index] = load4(weights, index * invocations * 4);
    UNROLL for (uint index = 0; index < shared_vec4s; ++index)
        shared_weights[index * invocations + place.invocation] =
            load4(weights, (register_vec4s + index) * invocations * 4);
    for (uint index = place.invocation; index < 2 * side_vec4s; index += invocations) sides[index] = Real4(0);
    wait_for_operand();
}

// Sets what unit j of a slot adds to the operand of its head.
INLINE void set_operand(const uint side, Place place, const uint cell, uint slot, uint j, Real value) {
    if (slice_runs == 0) return;
    uint k = (slot - place.head) * place.head_units + j;
    sides[side * side_vec4s + (place.head * slice_rows + row_of(place, cell)) * row_vec4s + k / 4][k % 4] = value;
}

// Multiplies one side of the operand by the weights. The results are in `sums`, for the invocation's cells.
INLINE void multiply(Params p, Place place, const uint side) {
    Address weights = own_weights(p, place);
    Real all[shared_cells][PRODUCTS];
    UNROLL for (uint cell = 0; cell < shared_cells; ++cell)
        UNROLL for (uint g = 0; g < PRODUCTS; ++g) all[cell][g] = 0.0f;
    UNROLL for (uint run = 0; run < slice_runs; ++run) {
        Real4 operand[slice_rows], weight[slice_units][PRODUCTS];
        UNROLL for (uint r = 0; r < slice_rows; ++r)
            operand[r] = sides[side * side_vec4s + (place.head * slice_rows + r) * row_vec4s + run * slice_lanes +
                               place.lane];
        UNROLL for (uint u = 0; u < slice_units; ++u)
            UNROLL for (uint g = 0; g < PRODUCTS; ++g) {
                uint index = (run * slice_units + u) * PRODUCTS + g;
                if (index < register_vec4s)
                    weight[u][g] = register_weights[index];
                else if (index < register_vec4s + shared_vec4s)
                    weight[u][g] = shared_weights[(index - register_vec4s) * invocations + place.invocation];
                else
                    weight[u][g] = load4(weights, index * invocations * 4);
            }
        // In this order, consecutive multiply-adds do not depend on each other.
        UNROLL for (uint c = 0; c < 4; ++c)
            UNROLL for (uint cell = 0; cell < shared_cells; ++cell)
                UNROLL for (uint g = 0; g < PRODUCTS; ++g)
                    all[cell][g] += operand[cell / slice_units][c] * weight[cell % slice_units][g][c];
    }

    // Adds up the sums of all lanes in a butterfly. While lanes have several cells, each lane of a pair adds up one
    // half of the cells.
    UNROLL for (uint level = 0; level < kMostLevels; ++level)
        if (1 << level < slice_lanes) {
            const uint apart = 1 << level, keeps = shared_cells / apart / 2;
            bool upper = (place.lane & apart) != 0;
            UNROLL for (uint g = 0; g < PRODUCTS; ++g) {
                if (keeps == 0) all[0][g] += subgroupShuffleXor(all[0][g], apart);
                UNROLL for (uint cell = 0; cell < shared_cells / 2; ++cell)
                    if (cell < keeps) {
                        Real low = all[cell][g], high = all[cell + keeps][g];
                        all[cell][g] = (upper ? high : low) + subgroupShuffleXor(upper ? low : high, apart);
                    }
            }
        }
    UNROLL for (uint cell = 0; cell < cells; ++cell)
        UNROLL for (uint g = 0; g < PRODUCTS; ++g) sums[cell][g] = all[cell][g];
}

// What a driver defines: take_inputs converts the inputs that were fetched for this step, and read_ahead fetches those of
// a later step.
DECLARE(void take_inputs(const uint turn, const uint cell))
DECLARE(void read_ahead(const uint turn, const uint cell, int step))

// Takes the inputs of this step, and fetches those of step `step`. A subgroup that waits for a load may also wait for
// others that it has made since. So this comes before the step's products, and the loads have at least their time. It
// comes after them if they load weights, which would wait for the inputs.
INLINE void advance_inputs(const uint turn, int step) {
    UNROLL for (uint cell = 0; cell < cells; ++cell) {
        take_inputs(turn, cell);
        read_ahead(turn, cell, step);
    }
}

#endif
