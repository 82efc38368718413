// A slice: some batch rows of one direction, whose steps one workgroup makes one after the other, so that steps wait for
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
layout(constant_id = kSliceRows) const uint slice_rows = 1;
layout(constant_id = kSliceRuns) const uint slice_runs = 1;
layout(constant_id = kRegisterFours) const uint register_fours = 0;
layout(constant_id = kSharedFours) const uint shared_fours = 0;
layout(constant_id = kSliceInvocations) const uint invocations = 1;

const uint fours = slice_runs * PRODUCTS;             // of weights of an invocation
const uint row_fours = slice_runs * slice_lanes;      // of one row of what the products multiply
const uint side_fours = slice_rows * row_fours;
// The cells of an invocation: the lanes that share a unit's products share its rows too.
const uint cells = slice_rows > slice_lanes ? slice_rows / slice_lanes : 1;
const uint turns = 2;   // steps of one iteration, for which an invocation loads what they need ahead of time

shared Real4 sides[2 * side_fours];
shared Real4 shared_weights[shared_fours > 0 ? shared_fours * invocations : 1];
Real4 register_weights[register_fours > 0 ? register_fours : 1];

// Where an invocation stands. Those that share a unit follow each other within a subgroup.
struct Place {
    uint invocation, unit, lane;   // the unit may lie past the last one
    uint direction, first_row;     // of the slice
    uint own_row;                  // the first in the slice of those whose cells are the invocation's
    bool owns;                     // any
};

// Workgroups: x, y number slices; z is the direction.
Place this_place() {
    uint invocation = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
    uint lane = invocation % slice_lanes;
    uint own_row = 0;
    [[unroll]] for (uint apart = 1; apart < slice_lanes; apart *= 2)
        if ((lane & apart) != 0) own_row += slice_rows / apart / 2;
    return Place(invocation, invocation / slice_lanes, lane, gl_WorkGroupID.z, linear_group() * slice_rows, own_row,
                 lane < slice_rows);
}

// An invocation's cell: false where there is none.
bool find_cell(Params p, Place place, uint cell, int step, out Element e) {
    e = Element(place.direction, place.first_row + place.own_row + cell, place.unit, step);
    return place.owns && e.n < p.params.N && e.j < p.params.H;
}

// Where a cell's element of a tensor is at each step. The parameters are read and most of an address is formed before
// the loop: a step would do little else otherwise.
struct Track {
    Address first;   // slot 0 at step 0
    Stride step;     // from a step to the next, in bytes
};

Track track(Params p, uint view, Element e, int end) {
    Stride step = p.params.strides[view].step[e.direction];
    Address first = unit_address(p, view, time_address(p, view, e.direction, 0, e.n), 0, e.j);
    if (has_lengths != 0 && step < 0) first = element(first, step * (int(p.params.T) - end));
    return Track(first, step * int(kElementBytes));
}

// A step past the row's end reads the last one; nobody uses what it reads.
Address at_step(Track track, int step, int end) {
    if (has_lengths != 0) step = min(step, end - 1);
    return track.first + Address(step * track.step);
}

// Before the first step: the weights that stay, and zeros for what the products multiply.
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

void set_operand(uint side, Place place, uint cell, uint k, Real value) {
    sides[side * side_fours + (place.own_row + cell) * row_fours + k / 4][k % 4] = value;
}

// Sums of one side with the weights, for the invocation's cells.
void multiply(Params p, Place place, uint side, out Real sums[cells][PRODUCTS]) {
    Address weights = p.params.weights[place.direction];
    Real4 parts[slice_rows][PRODUCTS];
    [[unroll]] for (uint r = 0; r < slice_rows; ++r)
        [[unroll]] for (uint g = 0; g < PRODUCTS; ++g) parts[r][g] = Real4(0);
    [[unroll]] for (uint run = 0; run < slice_runs; ++run) {
        Real4 operand[slice_rows];
        [[unroll]] for (uint r = 0; r < slice_rows; ++r)
            operand[r] = sides[side * side_fours + r * row_fours + run * slice_lanes + place.lane];
        [[unroll]] for (uint g = 0; g < PRODUCTS; ++g) {
            uint four = run * PRODUCTS + g;
            Real4 weight;
            if (four < register_fours)
                weight = register_weights[four];
            else if (four < register_fours + shared_fours)
                weight = shared_weights[(four - register_fours) * invocations + place.invocation];
            else
                weight = load4(weights, (four * invocations + place.invocation) * 4);
            [[unroll]] for (uint r = 0; r < slice_rows; ++r) parts[r][g] += operand[r] * weight;
        }
    }
    Real all[slice_rows][PRODUCTS];
    [[unroll]] for (uint r = 0; r < slice_rows; ++r)
        [[unroll]] for (uint g = 0; g < PRODUCTS; ++g)
            all[r][g] = (parts[r][g].x + parts[r][g].y) + (parts[r][g].z + parts[r][g].w);

    // While lanes have several rows, two that add up share them.
    [[unroll]] for (uint apart = 1; apart < slice_lanes; apart *= 2) {
        bool upper = (place.lane & apart) != 0;
        uint keeps = slice_rows / apart / 2;
        [[unroll]] for (uint g = 0; g < PRODUCTS; ++g) {
            if (keeps == 0) all[0][g] += subgroupShuffleXor(all[0][g], apart);
            [[unroll]] for (uint r = 0; r < keeps; ++r) {
                Real kept = upper ? all[r + keeps][g] : all[r][g], given = upper ? all[r][g] : all[r + keeps][g];
                all[r][g] = kept + subgroupShuffleXor(given, apart);
            }
        }
    }
    [[unroll]] for (uint cell = 0; cell < cells; ++cell)
        [[unroll]] for (uint g = 0; g < PRODUCTS; ++g) sums[cell][g] = all[cell][g];
}

#endif
