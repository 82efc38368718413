// Shared by all step kernels: their constants, and access to the views of a call's tensors. Include a cell's file
// first.
#ifndef VKRNN_STEP_GLSL
#define VKRNN_STEP_GLSL
#extension GL_EXT_control_flow_attributes : require
#include "memory.glsl"

layout(local_size_x_id = kLocalSize) in;
layout(constant_id = kLanes) const uint lanes = 1;
layout(constant_id = kRows) const uint rows = 1;
layout(constant_id = kVectorLoads) const uint vector_loads = 0;
layout(constant_id = kHasMask) const uint has_mask = 0;
layout(constant_id = kPhase) const uint phase = 0;
layout(constant_id = kGateOrder) const uint gate_order = 0x3210;
layout(constant_id = kKeep) const uint keep = 0;
layout(constant_id = kHasLengths) const uint has_lengths = 0;

layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Params { StepParams params; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Integer { int value; };
layout(push_constant, std430) uniform Push { StepPush push; };

// Unit j of batch row n at step k.
struct Element {
    uint direction, n, j;
    int k;
};

uint slot_of(uint gate) { return gate_order >> (4 * gate) & 15; }

// A kernel that runs many steps of one element may first compute what is the same in all of them. It must then access
// no other element. element_found means that found_length, the length of the element's row, is set. views_found means
// that the other variables are set. For each view of a forward step, they are its address at step 0 and slot 0, and the
// distances in bytes between its steps and between its slots.
bool element_found = false, views_found = false;
int found_length, found_step[kTileOperand];
uint found_slot[kTileOperand];
Address found_at[kTileOperand];

// Returns the number of steps of a batch row.
int length_of(Params p, uint n) {
    int steps = int(p.params.T);
    if (element_found)
        steps = found_length;
    else if (has_lengths != 0)
        steps = Integer(p.params.lengths + Address(n) * 4).value;
    return steps;
}

// Returns true if a step is past the end of a batch row.
bool has_ended(Params p, uint n, int step) { return has_lengths != 0 && step >= length_of(p, n); }

Address time_address(Params p, uint view, uint direction, int step, uint n) {
    return element(p.params.at[2 * view + direction],
                   step * p.params.strides[view].step[direction] + Stride(n) * p.params.strides[view].row);
}

// Returns the address of slot 0, unit 0 of a tensor for one direction, step and batch row. For a step past the row's
// end it returns the address of the row's last step; callers ignore the value read there.
Address row_address(Params p, uint view, uint direction, int step, uint n) {
    if (has_lengths != 0) {
        int end = length_of(p, n);
        step = min(step, end - 1);
        if (p.params.strides[view].step[direction] < 0) step += int(p.params.T) - end;
    }
    return time_address(p, view, direction, step, n);
}
Address unit_address(Params p, uint view, Address row, uint slot, uint j) {
    return element(row, Stride(slot) * p.params.strides[view].slot + Stride(j) * p.params.strides[view].unit);
}

// Return the distance in bytes between steps, and between slots. Strategies that use these refuse calls for which 32
// bits are too few.
int step_bytes(Params p, uint view, uint direction) {
    return int(p.params.strides[view].step[direction]) * int(kElementBytes);
}
uint slot_bytes(Params p, uint view) { return p.params.strides[view].slot * kElementBytes; }

// Returns true if find_views covers a view: those that differ by step and that a forward step reads or writes.
bool is_found(uint view) {
    return view == kProjected || view == kMask || view == kSaved || view == kHidden || view == kCell;
}

// Computes the addresses and distances of these views for an element.
void find_views(Params p, Element e) {
    [[unroll]] for (uint view = 0; view < kTileOperand; ++view)
        if (is_found(view)) {
            found_at[view] = unit_address(p, view, row_address(p, view, e.direction, 0, e.n), 0, e.j);
            found_step[view] = step_bytes(p, view, e.direction);
            found_slot[view] = slot_bytes(p, view);
        }
}

Address view_address(Params p, uint view, uint direction, int step, uint n, uint slot, uint j) {
    Address at;
    if (views_found && is_found(view)) {
        if (has_lengths != 0) step = min(step, found_length - 1);
        at = found_at[view] + Address(int64_t(step) * found_step[view]) + slot * found_slot[view];
    } else {
        at = unit_address(p, view, row_address(p, view, direction, step, n), slot, j);
    }
    return at;
}
Real load_view(Params p, uint view, uint direction, int step, uint n, uint slot, uint j) {
    return load(view_address(p, view, direction, step, n, slot, j), 0);
}
void store_view(Params p, uint view, uint direction, int step, uint n, uint slot, uint j, Real value) {
    store(view_address(p, view, direction, step, n, slot, j), 0, value);
}
// Stores zero for a step past the end of batch row n. In both directions, such a step stands for time step `step`.
void clear_view(Params p, uint view, uint direction, int step, uint n, uint slot, uint j) {
    int at = p.params.strides[view].step[direction] < 0 ? int(p.params.T) - 1 - step : step;
    store(unit_address(p, view, time_address(p, view, direction, at, n), slot, j), 0, 0.0);
}
Real load_mask(Params p, uint direction, int step, uint n, uint j) {
    return has_mask != 0 ? load_view(p, kMask, direction, step, n, 0, j) : 1.0;
}
// Loads the state before step `step`.
Real load_previous(Params p, uint sequence, uint init, uint direction, int step, uint n, uint slot, uint j) {
    return step == 0 ? load_view(p, init, direction, 0, n, slot, j)
                     : load_view(p, sequence, direction, step - 1, n, slot, j);
}

#endif
