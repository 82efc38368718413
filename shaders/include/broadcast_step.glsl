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
#include "broadcast.glsl"

const uint blocks = low_blocks * high_blocks;   // subgroups of a workgroup
const uint parts = rows * vectors;
const uint shares = parts > blocks ? parts / blocks : 1;   // parts of a subgroup; where there are fewer, some do what others do
const uint halves = shares > 1 ? 2 : 1;
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

// The parts at hand.
uint row_[2], unit_[2], part_[2];
void choose(uint first) {
    [[unroll]] for (uint h = 0; h < halves; ++h) {
        part_[h] = blocks > parts ? subgroup() & (parts - 1) : subgroup() * shares + first + h;
        row_[h] = first_row() + part_[h] / vectors;
        unit_[h] = unit_tile() * (vectors * lanes) + part_[h] % vectors * lanes;
    }
}

// Row of the batch in tensors of [steps, N, directions, slots, H]; a step that runs backwards stands before step 0.
Address row_place(uint view, int step, uint backwards, uint slots, uint row) {
    int steps = (orders & backwards) != 0 ? -step : step;
    Stride at = Stride(steps * int(push.p.N) + int(row)) * int(directions * slots * units);
    return push.p.at[view] + Address(at) * 4;
}

// One vector for each part at hand.
struct Lanes { float half_[2]; };
Lanes zeros() { return Lanes(float[2](0.0, 0.0)); }
void add(inout Lanes sum, Lanes more) { [[unroll]] for (uint h = 0; h < halves; ++h) sum.half_[h] += more.half_[h]; }

Lanes load_step(uint view, int step, uint backwards, uint slots, uint slot) {
    Lanes found = zeros();
    [[unroll]] for (uint h = 0; h < halves; ++h)
        found.half_[h] = load_lanes(row_place(view, step, backwards, slots, row_[h]) + (slot * units + unit_[h]) * 4, late_lane);
    return found;
}
void store_step(uint view, int step, uint backwards, uint slots, uint slot, Lanes value) {
    Address at[2];
    [[unroll]] for (uint h = 0; h < halves; ++h)
        at[h] = row_place(view, step, backwards, slots, row_[h]) + (slot * units + unit_[h]) * 4;
    if (halves == 2)
        store_lanes(at[0], at[1], value.half_[0], value.half_[1]);
    else if (blocks <= parts || subgroup() < parts)
        Scalar(at[0] + late_lane * 4).value = value.half_[0];
}
// The same to a tensor that may be in a window. Subgroups that have the same part store the same, and must not read after
// one of them has stored.
#define STORE_STEP(window, view, step, backwards, slots, slot, vectors_)                                           \
    if (in_windows != 0) {                                                                                                 \
        [[unroll]] for (uint h = 0; h < halves; ++h)                                                                       \
            STORE_TO_WINDOW(window, row_place(view, step, backwards, slots, row_[h]) + (slot * units + unit_[h]) * 4,   \
                            vectors_.half_[h])                                                                             \
    } else {                                                                                                               \
        store_step(view, step, backwards, slots, slot, vectors_);                                                          \
    }

// The learned vectors of a cell: of [slots, H].
Lanes load_vector(uint view, uint slot) {
    Lanes found = zeros();
    [[unroll]] for (uint h = 0; h < halves; ++h)
        found.half_[h] = load_lanes(push.p.at[view] + (slot * units + unit_[h]) * 4, late_lane);
    return found;
}

#ifdef PRODUCTS
const uint kLineBytes = 64;   // of a cache
const uint kIndexMask = 0x3fff;
const uint tile = PRODUCTS * parts * lanes;
const uint kPad = tile;       // so that an index is a sum and not a disjunction, of which the compiler makes no vectors
shared float sums[depth == 0 || kAlone ? 1 : kPad + blocks * tile];
float kept_sums[PRODUCTS * parts];   // where it is alone

// Reads what the tile's cells will, a word of each line, so that it is in the cache by then: all of it at once, where the
// cells would wait for one after the other. What is read goes to `touched`.
const uint lines = (vectors * lanes * 4 + kLineBytes - 1) / kLineBytes;
float touched = 0.0;
void touch(uint view, int step, uint backwards, uint slots) {
    Address first = row_place(view, step, backwards, slots, first_row()) + unit_tile() * (vectors * lanes * 4);
    [[unroll]] for (uint r = 0; r < rows; ++r)
        [[unroll]] for (uint slot = 0; slot < slots; ++slot)
            [[unroll]] for (uint line = 0; line < lines; ++line)
                touched += load_uniform(first + (r * directions * slots + slot) * units * 4 + line * kLineBytes);
}

// The product of `rows` rows from `a` on, `stride` bytes apart, with the packed weights.
void form_products(Address a, Address stride) {
    uint block = subgroup();
    const uint width = PRODUCTS * vectors * lanes;
    Address b = push.p.at[kStepProduct] +
                (Address(unit_tile()) * (blocks * depth) + block * depth) * (width * 4);
    a += block * depth * 4;
    precise float sum[PRODUCTS * parts];
    [[unroll]] for (uint i = 0; i < PRODUCTS * parts; ++i) sum[i] = 0.0;
    if (push.p.step < 0) sum[0] = touched;   // never, but the compiler does not know
    uint seam_runs = runs_of_seam(depth / kRun, kRun * (width + rows));
    // Two products are added before they join the sum, precisely so: as much work, and half the rounding error.
    UNROLLED for (uint run = 0; run < depth / kRun; ++run)
        [[unroll]] for (uint i = 0; i < kRun; i += 2) {
            uint k = run * kRun + i;
            seam(run / seam_runs);
            float w[2][PRODUCTS * vectors];
            [[unroll]] for (uint v = 0; v < 2 * PRODUCTS * vectors; ++v)
                w[v / (PRODUCTS * vectors)][v % (PRODUCTS * vectors)] = load_lanes(b + (k * width + v * lanes) * 4);
            [[unroll]] for (uint r = 0; r < rows; ++r) {
                Address at = a + r * stride + k * 4;
                vec2 x = load_two(at);
                [[unroll]] for (uint v = 0; v < PRODUCTS * vectors; ++v)
                    sum[r * PRODUCTS * vectors + v] += x.x * w[0][v] + x.y * w[1][v];
            }
        }
    if (kAlone) {
        [[unroll]] for (uint i = 0; i < PRODUCTS * parts; ++i) kept_sums[i] = sum[i];
    } else {
        // Masked, so that the compiler sees that nothing overflows and makes vectors of what follows.
        uint own = block * tile & kIndexMask;
        [[unroll]] for (uint i = 0; i < PRODUCTS * parts; ++i)
            [[unroll]] for (uint l = 0; l < lanes; ++l) sums[own + (kPad + i * lanes + l)] = subgroupShuffle(sum[i], l);
        // So that what comes before this is not the last block, to which the compiler delays all that is used there alone.
        seam(kLastSeam);
        sums[own + (kPad + looked_up)] = subgroupShuffle(sum[0], 0);
        if (blocks > 1) barrier();
        else subgroupMemoryBarrierShared();
    }
}

// The recurrent product of one slot.
Lanes load_product(uint slot) {
    Lanes sum = zeros();
    [[unroll]] for (uint i = 0; i < slabs; ++i)
        [[unroll]] for (uint h = 0; h < halves; ++h) {
            Stride at = Stride(i * push.p.N + row_[h]) * (PRODUCTS * units) + slot * units + unit_[h];
            sum.half_[h] += load_lanes(push.p.at[kStepProduct] + Address(at) * 4, late_lane);
        }
    if (depth != 0)
        [[unroll]] for (uint h = 0; h < halves; ++h) {
            uint vector = (part_[h] / vectors * PRODUCTS + slot) * vectors + part_[h] % vectors;
            if (kAlone) sum.half_[h] += kept_sums[vector];
            uint at = vector * lanes & kIndexMask;
            [[unroll]] for (uint block = 0; block < blocks && !kAlone; ++block) {
                float found = 0.0;
                [[unroll]] for (uint l = 0; l < lanes; ++l) {
                    float one = sums[at + (kPad + block * tile + l)];
                    found = gl_SubgroupInvocationID == l ? one : found;
                }
                sum.half_[h] += found;
            }
        }
    return sum;
}
#endif

// Runs the cell, which the driver defines, on all parts of the subgroup.
#ifdef VKRNN_LOOPS
#define RUN_CELLS                                                                                                          \
    [[unroll]] for (uint first = 0; first < shares; first += 2) {                                                          \
        choose(first);                                                                                                     \
        run_cell();                                                                                                        \
    }
#else   // no loop: the driver would not unroll it
#define RUN_CELLS                                                                                                          \
    choose(0);                                                                                                             \
    run_cell();                                                                                                            \
    if (shares > 2) {                                                                                                      \
        choose(2);                                                                                                         \
        run_cell();                                                                                                        \
    }
#endif
#endif
