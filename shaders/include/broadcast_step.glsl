// What the step kernels for llvmpipe share (see broadcast.glsl). A workgroup takes a tile of `rows` batch rows and
// `vectors` vectors of units. Where `depth` is not 0 it forms the tile's recurrent products first: each subgroup those of
// one block of k, which it leaves in shared memory. Then the subgroups share the tile's parts, which are a vector of
// units of a batch row, and run the cell on them, two at a time where there are as many: a store of two takes as long as
// one. A subgroup that is alone keeps its products. With depth 0 they come from `slabs`, parts of the sums that other
// kernels have left.
// A cell's file is included before the driver that includes this; the driver defines PRODUCTS, the number of slots of
// the product.
#ifndef VKRNN_BROADCAST_STEP_GLSL
#define VKRNN_BROADCAST_STEP_GLSL
#include "abi.h"
#include "phases.glsl"

layout(local_size_x_id = kLocalSize, local_size_y_id = kLanes, local_size_z_id = kMoreSubgroups) in;
layout(constant_id = kLocalSize) const uint lanes = 8;
layout(constant_id = kLanes) const uint low_blocks = 1;
layout(constant_id = kMoreSubgroups) const uint high_blocks = 1;
layout(constant_id = kRows) const uint rows = 1;
layout(constant_id = kTileVectors) const uint vectors = 2;
layout(constant_id = kTileDepth) const uint depth = 0;
layout(constant_id = kInWindows) const uint in_windows = 0;
layout(constant_id = kUnits) const uint units = 16;   // H
layout(constant_id = kGateOrder) const uint gate_order = 0x3210;
layout(constant_id = kKeep) const uint keep = 0;
layout(constant_id = kSlabs) const uint slabs = 0;
layout(constant_id = kOrders) const uint orders = 0;
layout(constant_id = kReads) const uint reads = 0;
layout(push_constant, std430) uniform Push { BroadcastStepPush p; } push;
const uint blocks = low_blocks * high_blocks;   // subgroups of a workgroup
#ifdef PRODUCTS
#define SUM_VECTORS (PRODUCTS * vectors)
#define SUM_BLOCK subgroup()
uint subgroup();
#include "broadcast_sums.glsl"
#else
#include "broadcast.glsl"
#endif

const uint parts = rows * vectors;
const uint shares = parts > blocks ? parts / blocks : 1;   // parts of a subgroup; where there are fewer, some do what others do
const uint directions = (orders & kTwoDirections) != 0 ? 2 : 1;

uint subgroup() {
    uint low = low_blocks == 1 ? 0 : UNIFORM(gl_LocalInvocationID.y);
    return high_blocks > 1 ? low + kBroadcastTable * UNIFORM(gl_LocalInvocationID.z) : low;
}
uint slot_of(uint gate) { return gate_order >> (4 * gate) & 15; }

#ifdef Z_IS_STEP
uint unit_tile() { return UNIFORM(gl_WorkGroupID.y); }
#else
uint unit_tile() { return UNIFORM(gl_WorkGroupID.y) + kBroadcastTable * UNIFORM(gl_WorkGroupID.z); }
#endif
uint first_row() { return UNIFORM(gl_WorkGroupID.x) * rows; }

// The parts of this subgroup.
uint row_[shares], unit_[shares], number_[shares];
void choose(uint part) {
    number_[part] = blocks > parts ? subgroup() & (parts - 1) : subgroup() * shares + part;
    row_[part] = first_row() + number_[part] / vectors;
    unit_[part] = unit_tile() * (vectors * lanes) + number_[part] % vectors * lanes;
}

// Row of the batch in tensors of [steps, N, directions, slots, H]; a step that runs backwards stands before step 0.
Address row_place(uint view, int step, uint backwards, uint slots, uint row) {
    int steps = (orders & backwards) != 0 ? -step : step;
    Stride at = Stride(steps * int(push.p.N) + int(row)) * int(directions * slots * units);
    return push.p.at[view] + Address(at) * 4;
}

// Where the vector of a part stands.
Address part_place(uint part, uint view, int step, uint backwards, uint slots, uint slot) {
    return row_place(view, step, backwards, slots, row_[part]) + (slot * units + unit_[part]) * 4;
}
float load_step(uint part, uint view, int step, uint backwards, uint slots, uint slot) {
    return load_lanes(part_place(part, view, step, backwards, slots, slot), late_lane);
}
// The same of the learned vectors of a cell, of [slots, H].
float load_vector(uint part, uint view, uint slot) {
    return load_lanes(push.p.at[view] + (slot * units + unit_[part]) * 4, late_lane);
}
#ifdef CELL_VECTORS
// The vector of a gate, or zeros.
float load_cell_vector(uint part, uint gate) {
    float found = 0.0;
    if ((reads & kReadsVectors) != 0 && gate < CELL_VECTORS)
        found = load_vector(part, kStepVectors, CELL_VECTORS > 1 ? slot_of(gate) : 0);
    return found;
}
#endif

// Stores a vector of the part `first`, and one of the next, if there is one.
void store_step(uint first, uint view, int step, uint backwards, uint slots, uint slot, float vector, float next) {
    Address at = part_place(first, view, step, backwards, slots, slot);
    if (shares > 1)
        store_lanes(at, part_place(first + 1, view, step, backwards, slots, slot), vector, next);
    else if (blocks <= parts || subgroup() < parts)
        Scalar(at + late_lane * 4).value = vector;
}
// The same, of vectors[part] INDEX, to a tensor that may be in a window. Subgroups that have the same part store the same,
// and must not read after one of them has stored.
#define STORE_STEP(window, first, view, step, backwards, slots, slot, vectors_, INDEX)                        \
    if (in_windows != 0) {                                                                                    \
        STORE_TO_WINDOW(window, part_place(first, view, step, backwards, slots, slot), vectors_[first] INDEX) \
        if (shares > 1)                                                                                       \
            STORE_TO_WINDOW(window, part_place(first + 1, view, step, backwards, slots, slot),                \
                            vectors_[first + 1] INDEX)                                                        \
    } else {                                                                                                  \
        store_step(first, view, step, backwards, slots, slot, vectors_[first] INDEX,                          \
                   vectors_[shares > 1 ? first + 1 : 0] INDEX);                                               \
    }

#ifdef PRODUCTS
const uint kLineBytes = 64;   // of a cache

// Reads what the tile's cells will, a word of each line, so that it is in the cache by then: all of it at once, where the
// cells would wait for one after the other. What is read goes to `touched`.
const uint lines = (vectors * lanes * 4 + kLineBytes - 1) / kLineBytes;
float touched = 0.0;
void touch(uint view, int step, uint backwards, uint slots, uint first_slot, uint end_slot) {
    Address first = row_place(view, step, backwards, slots, first_row()) + unit_tile() * (vectors * lanes * 4);
    [[unroll]] for (uint r = 0; r < rows; ++r)
        [[unroll]] for (uint slot = first_slot; slot < end_slot; ++slot)
            [[unroll]] for (uint line = 0; line < lines; ++line)
                touched += load_uniform(first + (r * directions * slots + slot) * units * 4 + line * kLineBytes);
}

// The product of `rows` rows from `a` on, `stride` bytes apart, with the packed weights.
Address product_a, product_b, product_stride;
float load_b(uint k, uint v) { return load_lanes(product_b + (k * (SUM_VECTORS * lanes) + v * lanes) * 4); }
vec2 load_a(uint k, uint r) { return load_two(product_a + r * product_stride + k * 4); }
void form_products(Address a, Address stride) {
    product_a = a + subgroup() * depth * 4;
    product_b = push.p.at[kStepProduct] +
                (Address(unit_tile()) * (blocks * depth) + subgroup() * depth) * (SUM_VECTORS * lanes * 4);
    product_stride = stride;
    form_sums(push.p.step < 0 ? touched : 0.0);   // never the first, but the compiler does not know
}

// The recurrent product of one slot.
float load_product(uint part, uint slot) {
    float sum = 0.0;
    if (slabs != 0)
        [[unroll]] for (uint i = 0; i < slabs; ++i) {
            Stride at = Stride(i * push.p.N + row_[part]) * (PRODUCTS * units) + slot * units + unit_[part];
            sum += load_lanes(push.p.at[kStepProduct] + Address(at) * 4, late_lane);
        }
    if (depth != 0) {
        uint index = (number_[part] / vectors * PRODUCTS + slot) * vectors + number_[part] % vectors;
        [[unroll]] for (uint block = 0; block < blocks; ++block) sum += load_sum(block, index);
    }
    return sum;
}
#endif

// The driver defines what a part's cell forms, and how two parts that follow each other, or the only one, are stored.
void form_part(uint part);
void store_parts(uint first);
void run_cells() {
    [[unroll]] for (uint part = 0; part < shares; ++part) {
        choose(part);
        form_part(part);
        if (blocks > parts) barrier();
        if (shares == 1) store_parts(part);
        else if (part % 2 == 1) store_parts(part - 1);
    }
}
#endif
