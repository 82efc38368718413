// A slice: some batch rows of one direction, whose steps one workgroup makes one after the other: so steps wait for
// nothing but each other. What a step's products multiply stands in shared memory, one side for even turns and one for
// odd ones: a step reads one and fills the other, and one barrier a step is enough. The weights never change, so an
// invocation reads as many of its own as it can keep, the first in registers and some more in shared memory, only once.
//
// The driver defines PRODUCTS, the products per unit and row.
#ifndef VKRNN_SLICES_GLSL
#define VKRNN_SLICES_GLSL
#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "step.glsl"

layout(constant_id = kSliceLanes) const uint slice_lanes = 1;
layout(constant_id = kSliceUnits) const uint slice_units = 1;
layout(constant_id = kSliceRows) const uint slice_rows = 1;
layout(constant_id = kSliceRuns) const uint slice_runs = 1;
layout(constant_id = kRegisterFours) const uint register_fours = 0;
layout(constant_id = kSharedFours) const uint shared_fours = 0;
layout(constant_id = kSliceInvocations) const uint invocations = 1;

const uint row_fours = slice_runs * slice_lanes;      // of one row of what the products multiply
const uint side_fours = slice_rows * row_fours;
// The lanes that share the products of some units also share the cells of these units in all rows. There are
// shared_cells of them: each lane has several, or the first lanes have one each.
const uint shared_cells = slice_rows * slice_units;
const uint cells = shared_cells > slice_lanes ? shared_cells / slice_lanes : 1;
const uint kMostLevels = 7;   // of sums over lanes: a subgroup has at most 128
// How many steps one iteration makes; an invocation also reads its inputs that many steps ahead.
const uint turns = 2;

shared Real4 sides[2 * side_fours];
shared Real4 shared_weights[shared_fours > 0 ? shared_fours * invocations : 1];

// An invocation keeps nothing but numbers and arrays of numbers from step to step, here and in the drivers, with indices
// that are constants once functions are inlined and loops unrolled. Those stay in registers; a compiler may leave structures
// and arrays of them in memory, and each step would wait for it.
Real4 register_weights[register_fours > 0 ? register_fours : 1];
bool there[cells];                // the invocation has this cell
int ends[cells];                  // steps of its batch row
Real sums[cells][PRODUCTS];       // of the last product

// The position of an invocation. Those that share units follow each other within a subgroup.
struct Place {
    uint invocation, lane;
    uint direction, first_row;   // of the slice
    uint first_unit;             // of those that the lanes share
    uint own_cell;               // the first of the shared cells that are the invocation's
    bool owns;                   // any
};

// Workgroups: x, y number slices; z is the direction.
Place this_place() {
    uint invocation = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    uint lane = invocation % slice_lanes;
    uint own_cell = 0;
    [[unroll]] for (uint level = 0; level < kMostLevels; ++level)
        if ((lane & 1 << level) != 0) own_cell += shared_cells >> (level + 1);
    return Place(invocation, lane, gl_WorkGroupID.z, linear_group() * slice_rows,
                 invocation / slice_lanes * slice_units, own_cell, lane < shared_cells);
}

// Return the row in the slice, and the unit, of an invocation's cell.
uint row_of(Place place, const uint cell) { return (place.own_cell + cell) / slice_units; }
uint unit_of(Place place, const uint cell) { return place.first_unit + (place.own_cell + cell) % slice_units; }

// Returns the element of an invocation's cell. If there is no such cell, that of the nearest one stands in, which may
// be computed but is not stored.
Element element_of(Params p, Place place, const uint cell, int step) {
    return Element(place.direction, min(place.first_row + row_of(place, cell), p.params.N - 1),
                   min(unit_of(place, cell), p.params.H - 1), step);
}

void find_cell(Params p, Place place, const uint cell) {
    uint n = place.first_row + row_of(place, cell);
    there[cell] = place.owns && n < p.params.N && unit_of(place, cell) < p.params.H;
    ends[cell] = length_of(p, min(n, p.params.N - 1));
}

// Returns the address of a cell's element of a view at a step; a step past the row's end stands for the last one. The
// parameters are read and most of an address is formed before the loop: a step would do little else otherwise.
Address find(Params p, uint view, Element e, int step, int end) {
    step = min(step, end - 1);
    if (has_lengths != 0 && p.params.strides[view].step[e.direction] < 0) step += int(p.params.T) - end;
    return unit_address(p, view, time_address(p, view, e.direction, step, e.n), 0, e.j);
}

void move(inout Address at, int bytes, bool moves) {
    if (moves) at += Address(int64_t(bytes));
}

Address gate_at(Address at, uint gate, uint bytes) { return at + Address(slot_of(gate) * bytes); }
Address state_at(Address at, uint state, uint bytes) { return at + Address((state - 1) * bytes); }   // of the cell states

// Prepares the first step: loads the weights that stay, and fills what the products multiply with zeros.
void start_slice(Params p, Place place) {
    Address weights = p.params.weights[place.direction];
    [[unroll]] for (uint four = 0; four < register_fours; ++four)
        register_weights[four] = load4(weights, (four * invocations + place.invocation) * 4);
    [[unroll]] for (uint four = 0; four < shared_fours; ++four)
        shared_weights[four * invocations + place.invocation] =
            load4(weights, ((register_fours + four) * invocations + place.invocation) * 4);
    for (uint four = place.invocation; four < 2 * side_fours; four += invocations) sides[four] = Real4(0);
    barrier();
}

void set_operand(const uint side, Place place, const uint cell, uint k, Real value) {
    sides[side * side_fours + row_of(place, cell) * row_fours + k / 4][k % 4] = value;
}

// Multiplies one side of the operand by the weights, which gives the sums of the invocation's cells.
void multiply(Params p, Place place, const uint side) {
    Address weights = p.params.weights[place.direction];
    Real all[shared_cells][PRODUCTS];
    [[unroll]] for (uint cell = 0; cell < shared_cells; ++cell)
        [[unroll]] for (uint g = 0; g < PRODUCTS; ++g) all[cell][g] = 0.0;
    [[unroll]] for (uint run = 0; run < slice_runs; ++run) {
        Real4 operand[slice_rows], weight[slice_units][PRODUCTS];
        [[unroll]] for (uint r = 0; r < slice_rows; ++r)
            operand[r] = sides[side * side_fours + r * row_fours + run * slice_lanes + place.lane];
        [[unroll]] for (uint u = 0; u < slice_units; ++u)
            [[unroll]] for (uint g = 0; g < PRODUCTS; ++g) {
                uint four = (run * slice_units + u) * PRODUCTS + g;
                if (four < register_fours)
                    weight[u][g] = register_weights[four];
                else if (four < register_fours + shared_fours)
                    weight[u][g] = shared_weights[(four - register_fours) * invocations + place.invocation];
                else
                    weight[u][g] = load4(weights, (four * invocations + place.invocation) * 4);
            }
        // Neighbours in this order do not wait for each other.
        [[unroll]] for (uint c = 0; c < 4; ++c)
            [[unroll]] for (uint cell = 0; cell < shared_cells; ++cell)
                [[unroll]] for (uint g = 0; g < PRODUCTS; ++g)
                    all[cell][g] += operand[cell / slice_units][c] * weight[cell % slice_units][g][c];
    }

    // As long as lanes have several cells, two lanes that add up their sums share the cells between them.
    [[unroll]] for (uint level = 0; level < kMostLevels; ++level)
        if (1 << level < slice_lanes) {
            const uint apart = 1 << level, keeps = shared_cells / apart / 2;
            bool upper = (place.lane & apart) != 0;
            [[unroll]] for (uint g = 0; g < PRODUCTS; ++g) {
                if (keeps == 0) all[0][g] += subgroupShuffleXor(all[0][g], apart);
                [[unroll]] for (uint cell = 0; cell < shared_cells / 2; ++cell)
                    if (cell < keeps) {
                        Real low = all[cell][g], high = all[cell + keeps][g];
                        all[cell][g] = (upper ? high : low) + subgroupShuffleXor(upper ? low : high, apart);
                    }
            }
        }
    [[unroll]] for (uint cell = 0; cell < cells; ++cell)
        [[unroll]] for (uint g = 0; g < PRODUCTS; ++g) sums[cell][g] = all[cell][g];
}

#endif
