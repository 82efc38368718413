// Shared by all step kernels: their constants, and access to the views of a call's tensors.
#ifndef VKRNN_STEP_GLSL
#define VKRNN_STEP_GLSL
#include "common/memory.glsl"
#include "common/step_abi.h"

WORKGROUP_SIZE_ID(kLocalSize)
SPECIALIZED(kLanes, uint, lanes, 1)
SPECIALIZED(kRows, uint, rows, 1)
SPECIALIZED(kVectorLoads, uint, vector_loads, 0)
SPECIALIZED(kHasMask, uint, has_mask, 0)
SPECIALIZED(kPhase, uint, phase, 0)
SPECIALIZED(kGateOrder, uint, gate_order, 0x3210)
SPECIALIZED(kKeep, uint, keep, 0)
SPECIALIZED(kHasLengths, uint, has_lengths, 0)
SPECIALIZED(kHasParts, uint, has_parts, 0)
SPECIALIZED(kHasHeads, uint, has_heads, 0)
SPECIALIZED(kHasReset, uint, has_reset, 0)
SPECIALIZED(kKeepsResetUp, uint, keeps_reset_up, 0)
SPECIALIZED(kBlendsHidden, uint, blends_hidden, 0)
SPECIALIZED(kBlendsCell, uint, blends_cell, 0)
SPECIALIZED(kKeepsBlendUp, uint, keeps_blend_up, 0)

CONSTANT bool masks_gates = has_mask == 2;   // each gate's recurrent product has a mask of its own

PARAMETERS(Params, StepParams)
READONLY_REFERENCE(Integer, int, value, 4)
PUSH_CONSTANTS(StepPush, push)

// Unit j of batch row n at step k, of a direction or of a part (see step_abi.h): functions take either as `direction`.
struct Element {
    uint direction, n, j;
    int k;
};

INLINE uint slot_of(uint gate) { return gate_order >> (4 * gate) & 15; }

// A driver that runs many steps of one element, and accesses no other, may first compute what is the same in all of
// them. It then defines HOISTS_ELEMENT: see hoist_element in matrices/hoisted_element.glsl. element_hoisted means that
// hoisted_length, the length of the element's row, and the learned vectors are set. views_hoisted means that the other
// variables are set: for each view of a forward step, its address at step 0 and slot 0, and the distances in bytes
// between its steps and between its slots.
#ifdef HOISTS_ELEMENT
bool element_hoisted = false, views_hoisted = false;
int hoisted_length, hoisted_step[kOwnView];
uint hoisted_slot[kOwnView];
Address hoisted_address[kOwnView];

// Returns true if hoist_views covers a view: those that differ by step and that a forward step reads or writes.
INLINE bool is_hoisted(uint view) {
#ifdef VKRNN_16BIT
    if (view == kCarryHidden || view == kCarryCell) return true;
#endif
    return view == kProjected || view == kMask || view == kTrainingState || view == kHidden || view == kCell;
}
#endif

// Returns the first unit of a unit's head.
INLINE uint first_of_head(Params p, uint j) {
    return has_heads != 0 ? j / params_of(p).head_units * params_of(p).head_units : 0;
}

// Returns the number of steps of a batch row.
INLINE int length_of(Params p, uint n) {
    int steps = int(params_of(p).T);
#ifdef HOISTS_ELEMENT
    if (element_hoisted)
        steps = hoisted_length;
    else
#endif
    if (has_lengths != 0)
        steps = Integer(params_of(p).lengths + Address(n) * 4).value;
    return steps;
}

// Returns true if a step is past the end of a batch row.
INLINE bool has_ended(Params p, uint n, int step) { return has_lengths != 0 && step >= length_of(p, n); }

// Return the direction of a part, and the distance between steps there. They are macros because functions would nest
// calls more deeply: see activate_gate.
#define direction_of(p, part) (has_parts != 0 ? (part) / params_of(p).parts : (part))
#define step_stride(p, view, part) params_of(p).strides[view].step[direction_of(p, part)]

INLINE Address time_address(Params p, uint view, uint direction, int step, uint n) {
    Stride first = step * step_stride(p, view, direction) + Stride(n) * params_of(p).strides[view].row;
    if (has_parts != 0)
        first += Stride(direction % params_of(p).parts) * params_of(p).H * params_of(p).strides[view].unit;
    return tensor_element(view, params_of(p).at[2 * view + direction_of(p, direction)], first);
}

// Returns the address of slot 0, unit 0 of a tensor for one direction, step and batch row. For a step past the row's
// end it returns the address of the row's last step, or of time step 0 if the row has none; callers ignore the value
// read there.
INLINE Address row_address(Params p, uint view, uint direction, int step, uint n) {
    if (has_lengths != 0) {
        int end = max(length_of(p, n), 1);
        step = min(step, end - 1);
        if (step_stride(p, view, direction) < 0) step += int(params_of(p).T) - end;
    }
    return time_address(p, view, direction, step, n);
}
// Return the addresses of the weights that a strategy has packed, and of a view of its own, for a direction or part.
#define weights_address(p, part)                      \
    (has_parts == 0 ? params_of(p).weights[part]      \
                    : element(params_of(p).weights[0], Stride(part) * params_of(p).weights_part))
#define own_address(p, view, which)                             \
    (has_parts == 0 ? params_of(p).at[2 * (view) + (which)]     \
                    : element(params_of(p).at[2 * (view)], Stride(which) * params_of(p).strides[view].part))
INLINE Address unit_address(Params p, uint view, Address row, uint slot, uint j) {
    return tensor_element(view, row,
                          Stride(slot) * params_of(p).strides[view].slot + Stride(j) * params_of(p).strides[view].unit);
}

// Return the distance in bytes between steps, and between slots. Strategies that use these refuse calls for which 32
// bits are too few.
INLINE int step_bytes(Params p, uint view, uint direction) {
    return int(step_stride(p, view, direction)) * int(tensor_bytes(view));
}
INLINE uint slot_bytes(Params p, uint view) { return params_of(p).strides[view].slot * tensor_bytes(view); }

INLINE Address view_address(Params p, uint view, uint direction, int step, uint n, uint slot, uint j) {
    Address at;
#ifdef HOISTS_ELEMENT
    if (views_hoisted && is_hoisted(view)) {
        if (has_lengths != 0) step = min(step, max(hoisted_length, 1) - 1);
        at = hoisted_address[view] + Address(int64_t(step) * hoisted_step[view]) + slot * hoisted_slot[view];
    } else
#endif
    at = unit_address(p, view, row_address(p, view, direction, step, n), slot, j);
    return at;
}
INLINE Loaded fetch_view(Params p, uint view, uint direction, int step, uint n, uint slot, uint j) {
    return fetch_tensor(view, view_address(p, view, direction, step, n, slot, j), 0);
}
INLINE Real load_view(Params p, uint view, uint direction, int step, uint n, uint slot, uint j) {
    return load_tensor(view, view_address(p, view, direction, step, n, slot, j), 0);
}
INLINE void store_view(Params p, uint view, uint direction, int step, uint n, uint slot, uint j, Real value) {
    store_tensor(view, view_address(p, view, direction, step, n, slot, j), 0, value);
}
// Stores zero for a step past the end of batch row n. In both directions, such a step stands for time step `step`.
INLINE void clear_view(Params p, uint view, uint direction, int step, uint n, uint slot, uint j) {
    int at = step_stride(p, view, direction) < 0 ? int(params_of(p).T) - 1 - step : step;
    store_tensor(view, unit_address(p, view, time_address(p, view, direction, at, n), slot, j), 0, 0.0f);
}
// The mask's functions are macros because functions would nest calls more deeply: see activate_gate.
// A slot has the mask of its gate's product, or all have the same one.
#define fetch_slot_mask(p, direction, step, n, slot, j) \
    (has_mask != 0 ? fetch_view(p, kMask, direction, step, n, slot, j) : Loaded(0))
#define fetch_mask(p, direction, step, n, j) fetch_slot_mask(p, direction, step, n, 0, j)
#define mask_of(loaded) (has_mask != 0 ? value_of(kMask, loaded) : 1.0f)
#define load_slot_mask(p, direction, step, n, slot, j) mask_of(fetch_slot_mask(p, direction, step, n, slot, j))
#define load_mask(p, direction, step, n, j) load_slot_mask(p, direction, step, n, 0, j)
// Fetches the state before step `step`.
INLINE Loaded fetch_previous(Params p, uint sequence, uint init, uint direction, int step, uint n, uint slot, uint j) {
    return step == 0 ? fetch_view(p, init, direction, 0, n, slot, j)
                     : fetch_view(p, sequence, direction, step - 1, n, slot, j);
}
#define previous_of(sequence, init, step, loaded) \
    ((step) == 0 ? value_of(init, loaded) : value_of(sequence, loaded))
#define load_previous(p, sequence, init, direction, step, n, slot, j) \
    previous_of(sequence, init, step, fetch_previous(p, sequence, init, direction, step, n, slot, j))

// Resets. Before a step, each state becomes factor * state + (1 - factor) * start. Row t of factors and starts belongs
// between rows t - 1 and t of the sequence: the backward direction's step k takes it from its row of step k - 1, and
// step 0 takes none.
#define reset_lag(p, direction) int(direction_of(p, direction))
#define resets(p, direction, step) (has_reset != 0 && (step) >= reset_lag(p, direction))
#define fetch_reset(p, view, direction, step, n, slot, j) \
    (resets(p, direction, step) ? fetch_view(p, view, direction, (step) - reset_lag(p, direction), n, slot, j) : Loaded(0))
// Returns a * x, but 0 where a is 0, whatever x is.
INLINE Real part(Real a, Real x) { return a == 0.0f ? 0.0f : a * x; }
#define blended(factor, state, start) (part(factor, state) + part(1.0f - (factor), start))
#ifndef CELL_STATES
#define CELL_STATES 1   // a kernel without a cell
#endif
// h and the first cell state have starts of their own. The other states start from 0.
#define RESET_STARTS (CELL_STATES > 1 ? 2 : 1)
#define start_view(s) ((s) > 0 ? kResetCell : kResetState)
// Return the factor of state s, and what it starts from.
#ifdef CELL_STABILIZER
#define factor_of(s, factor) ((s) == CELL_STABILIZER && (factor) != 0.0f ? Real(1.0f) : Real(factor))
#else
#define factor_of(s, factor) (factor)
#endif
#define start_of(s, start) ((s) < RESET_STARTS ? value_of(start_view(s), start) : Real(0.0f))
// Return state s after the reset of a step, from what has been fetched or from memory.
#define reset_of(p, direction, step, factor, s, state, start) \
    (resets(p, direction, step) ? blended(factor_of(s, value_of(kReset, factor)), state, start_of(s, start)) : (state))
#define fetch_start(p, direction, step, n, s, j) fetch_reset(p, start_view(s), direction, step, n, 0, j)
#define load_reset(p, direction, step, n, s, j, state)                                              \
    reset_of(p, direction, step, fetch_reset(p, kReset, direction, step, n, 0, j), s, state, \
             (s) < RESET_STARTS ? fetch_start(p, direction, step, n, s, j) : Loaded(0))

// Blends. After a step, h becomes part * h + (1 - part) * old, where `old` is h from which the step began, after its
// reset. So does the cell state of a cell with a single one. State 0 is h.
#define blends(state) ((state) == 0 ? blends_hidden != 0 : (state) == 1 && blends_cell != 0)
#define fetch_blend(p, state, direction, step, n, j) \
    (blends(state) ? fetch_view(p, kBlend + (state), direction, step, n, 0, j) : Loaded(0))

// Returns unit j of the operand of step 0's product.
INLINE Real first_operand(Params p, uint direction, uint n, uint j) {
    Real state = load_view(p, kInitHidden, direction, 0, n, 0, j);
    return load_reset(p, direction, 0, n, 0, j, state) * load_mask(p, direction, 0, n, j);
}

// A forward step stores its states among the results. If these are in a 16-bit type, the exact states are carried to
// the next step in float32.
#ifdef VKRNN_16BIT
INLINE uint carried(uint sequence, uint carry) { return is_16bit(sequence) ? carry : sequence; }
INLINE int carried_step(uint sequence, int step) { return is_16bit(sequence) ? step & 1 : step; }
#define fetch_carried(p, sequence, carry, init, direction, step, n, slot, j)                                          \
    ((step) == 0 ? fetch_view(p, init, direction, 0, n, slot, j)                                                      \
                 : fetch_view(p, carried(sequence, carry), direction, carried_step(sequence, (step) - 1), n, slot, j))
INLINE void store_carried(Params p, uint sequence, uint carry, uint direction, int step, uint n, uint slot, uint j,
                          Real value) {
    store_view(p, sequence, direction, step, n, slot, j, value);
    if (is_16bit(sequence)) store_view(p, carry, direction, step & 1, n, slot, j, value);
}
#else
#define carried(sequence, carry) (sequence)
#define carried_step(sequence, step) (step)
#define fetch_carried(p, sequence, carry, init, direction, step, n, slot, j) \
    fetch_previous(p, sequence, init, direction, step, n, slot, j)
#define store_carried(p, sequence, carry, direction, step, n, slot, j, value) \
    store_view(p, sequence, direction, step, n, slot, j, value)
#endif
#define carried_of(sequence, carry, init, step, loaded) previous_of(carried(sequence, carry), init, step, loaded)
#define load_carried(p, sequence, carry, init, direction, step, n, slot, j) \
    carried_of(sequence, carry, init, step, fetch_carried(p, sequence, carry, init, direction, step, n, slot, j))

#endif
