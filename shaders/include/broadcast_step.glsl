// What the step kernels for llvmpipe share (see broadcast.glsl). A subgroup takes two vectors of units of one batch row;
// the recurrent products come in slabs, parts of the sums that are added up here.
// A cell's file is included before the driver that includes this.
#ifndef VKRNN_BROADCAST_STEP_GLSL
#define VKRNN_BROADCAST_STEP_GLSL
#include "abi.h"

layout(local_size_x_id = kLocalSize, local_size_z_id = kLanes) in;
layout(constant_id = kLocalSize) const uint lanes = 8;
layout(constant_id = kLanes) const uint blocks = 1;      // of units, of a workgroup
layout(constant_id = kGateOrder) const uint gate_order = 0x3210;
layout(constant_id = kKeep) const uint keep = 0;
layout(constant_id = kSlabs) const uint slabs = 1;
layout(constant_id = kOrders) const uint orders = 0;
layout(constant_id = kReads) const uint reads = 0;
#include "broadcast.glsl"
layout(push_constant, std430) uniform Push { BroadcastStepPush p; } push;

uint slot_of(uint gate) { return gate_order >> (4 * gate) & 15; }

#ifdef Z_IS_STEP
uint row() { return UNIFORM(gl_WorkGroupID.y); }
#else
uint row() { return UNIFORM(gl_WorkGroupID.y) + kBroadcastTable * UNIFORM(gl_WorkGroupID.z); }
#endif
uint unit() { return (UNIFORM(gl_WorkGroupID.x) * blocks + UNIFORM(gl_LocalInvocationID.z)) * 2 * lanes; }

// Row of the batch in tensors of [steps, N, directions, slots, H]; a step that runs backwards stands before step 0.
Address place(uint view, int step, uint backwards, uint slots, uint slot) {
    int steps = (orders & backwards) != 0 ? -step : step;
    Stride at = Stride(steps * int(push.p.N) + int(row())) * int(push.p.directions * slots * push.p.H);
    return push.p.at[view] + Address(at + slot * push.p.H + unit()) * 4;
}

// Two vectors.
struct Lanes { float half_[2]; };
Lanes load_two(Address at) { return Lanes(float[2](load_lanes(at), load_lanes(at + lanes * 4))); }
void store_two(Address at, Lanes value) { store_lanes(at, value.half_[0], value.half_[1]); }

// The recurrent product of one of `gates` slots.
Lanes load_product(uint gates, uint slot) {
    Lanes sum;
    sum.half_[0] = sum.half_[1] = 0.0;
    [[unroll]] for (uint i = 0; i < slabs; ++i) {
        Stride at = Stride(i * push.p.N + row()) * (gates * push.p.H) + slot * push.p.H + unit();
        Lanes part = load_two(push.p.at[kStepProduct] + Address(at) * 4);
        sum.half_[0] += part.half_[0];
        sum.half_[1] += part.half_[1];
    }
    return sum;
}

// The learned vectors of a cell: of [slots, H].
Lanes load_vector(uint view, uint slot) { return load_two(push.p.at[view] + Address(slot * push.p.H + unit()) * 4); }

#endif
