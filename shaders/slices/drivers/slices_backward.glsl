// The backward steps of a slice. Per cell they compute the same as form_cell and store_cell of backward_cell.glsl. Step
// -1 only takes the gradient that comes from step 0: it is the gradient of the initial state.
#define BACKWARD
#include "slices/slices.glsl"

SPECIALIZED(kToInitial, uint, to_initial, 0)

// Whether the cell's gradient needs the hidden state, or the cell states, before a step. The loop runs backward in
// time, so its next iteration uses them again, as the states after its step.
#ifdef CELL_KEEPS_HIDDEN
CONSTANT bool needs_hidden = true;
#else
CONSTANT bool needs_hidden = false;
#endif
CONSTANT bool needs_cell = CELL_STATES > 1;
INLINE bool needs(const uint state) { return state > 0 ? needs_cell : needs_hidden; }
// Whether a state has an upstream gradient at every step.
INLINE bool adds(const uint state) { return state == 0 || has_upstream_cell != 0; }
#ifdef CELL_SCALE
CONSTANT bool other_delta = scales_product != 0;   // the recurrent deltas differ from the gates' deltas
#else
CONSTANT bool other_delta = false;
#endif

// All inputs of a step besides the gradient from the later step, fetched `turns` steps ahead.
Loaded kept_ahead[turns][cells][CELL_GATES], before_ahead[turns][cells][CELL_STATES];
Loaded upstream_ahead[turns][cells][CELL_STATES], mask_ahead[turns][cells], q_ahead[turns][cells];
Address training_at[cells], upstream_at[cells], upstream_cell_at[cells], product_at[cells];   // at the step to load next
Address hidden_at[cells], cell_at[cells];                         // one step earlier
Address init_hidden_at[cells], init_cell_at[cells];               // of step 0
Address mask_at[cells];                                           // one step later
// After step 1, hidden_at and cell_at point to the initial states, which must have the same type as the other states.
int training_step, upstream_step, upstream_cell_step, product_step, hidden_step, state_step, mask_step;
// Distances in bytes between slots. init_slot belongs to the initial cell states, state_slot to the states to load
// next.
uint training_slot, upstream_cell_slot, init_slot, state_slot[cells];

// What a step writes.
Real carry[cells][CELL_STATES], after[cells][CELL_STATES], dx[cells][CELL_GATES], dr[cells][CELL_GATES];
Address delta_at[cells], recurrent_delta_at[cells];   // at the step to store next
int delta_step, recurrent_delta_step;
uint delta_slot, recurrent_delta_slot;

Real v[cells][CELL_GATES], last[cells][CELL_STATES];

// The inputs of the step, converted.
Real saved[cells][CELL_GATES], before[cells][CELL_STATES], upstream[cells][CELL_STATES], q[cells], mask[cells];
Real later_factor[cells];   // of the later step's reset

// Sets what is the same for all cells.
INLINE void set_steps(Params p, Place place) {
    uint d = place.direction;
    training_step = step_bytes(p, kTrainingState, d);
    upstream_step = step_bytes(p, kUpstream, d);
    upstream_cell_step = has_upstream_cell != 0 ? step_bytes(p, kUpstreamCell, d) : 0;
    delta_step = step_bytes(p, kDelta, d);
    product_step = other_delta ? step_bytes(p, kProduct, d) : 0;
    hidden_step = needs_hidden ? step_bytes(p, kHidden, d) : 0;
    state_step = needs_cell ? step_bytes(p, kCell, d) : 0;
    mask_step = has_mask != 0 ? step_bytes(p, kMask, d) : 0;
    recurrent_delta_step = other_delta ? step_bytes(p, kRecurrentDelta, d) : 0;
    set_reset_steps(p, d);
    training_slot = slot_bytes(p, kTrainingState);
    upstream_cell_slot = has_upstream_cell != 0 ? slot_bytes(p, kUpstreamCell) : 0;
    init_slot = needs_cell ? slot_bytes(p, kInitCell) : 0;
    delta_slot = slot_bytes(p, kDelta);
    recurrent_delta_slot = other_delta ? slot_bytes(p, kRecurrentDelta) : 0;
}

// Fetches the inputs of step `step`. Must be called for the steps in order. The mask is that of the operand of the
// later step's product. Steps before 0 have no inputs of their own and ignore what they load.
INLINE void read_ahead(const uint turn, const uint cell, int step) {
    bool moves = 0 < step && step < ends[cell];
    UNROLL for (uint g = 0; g < CELL_GATES; ++g)
        kept_ahead[turn][cell][g] = fetch_tensor(kTrainingState, gate_at(training_at[cell], g, training_slot), 0);
    move(training_at[cell], -training_step, moves);
    upstream_ahead[turn][cell][0] = fetch_tensor(kUpstream, upstream_at[cell], 0);
    move(upstream_at[cell], -upstream_step, moves);
    if (has_upstream_cell != 0) {
        UNROLL for (uint s = 1; s < CELL_STATES; ++s)
            upstream_ahead[turn][cell][s] =
                fetch_tensor(kUpstreamCell, state_at(upstream_cell_at[cell], s, upstream_cell_slot), 0);
        move(upstream_cell_at[cell], -upstream_cell_step, moves);
    }
    if (needs_hidden) {
        before_ahead[turn][cell][0] = fetch_tensor(kHidden, hidden_at[cell], 0);
        move(hidden_at[cell], -hidden_step, 1 < step && step <= ends[cell]);
        if (step == 1) hidden_at[cell] = init_hidden_at[cell];
    }
    if (needs_cell) {
        UNROLL for (uint s = 1; s < CELL_STATES; ++s)
            before_ahead[turn][cell][s] = fetch_tensor(kCell, state_at(cell_at[cell], s, state_slot[cell]), 0);
        move(cell_at[cell], -state_step, 1 < step && step <= ends[cell]);
        if (step == 1) {
            cell_at[cell] = init_cell_at[cell];
            state_slot[cell] = init_slot;
        }
    }
    if (has_mask != 0) {
        mask_ahead[turn][cell] = fetch_tensor(kMask, mask_at[cell], 0);
        move(mask_at[cell], -mask_step, 0 <= step && step + 1 < ends[cell]);
    }
    if (has_reset != 0) read_reset_ahead(turn, cell, -1, lag < step && step - lag < ends[cell]);
    if (other_delta) {
        q_ahead[turn][cell] = fetch_tensor(kProduct, product_at[cell], 0);
        move(product_at[cell], -product_step, moves);
    }
}

// Converts the inputs of a step.
INLINE void take_inputs(const uint turn, const uint cell) {
    UNROLL for (uint g = 0; g < CELL_GATES; ++g) saved[cell][g] = value_of(kTrainingState, kept_ahead[turn][cell][g]);
    UNROLL for (uint s = 0; s < CELL_STATES; ++s)
        before[cell][s] = needs(s) ? value_of(s > 0 ? kCell : kHidden, before_ahead[turn][cell][s]) : 0.0f;
    UNROLL for (uint s = 0; s < CELL_STATES; ++s)
        upstream[cell][s] = adds(s) ? value_of(s > 0 ? kUpstreamCell : kUpstream, upstream_ahead[turn][cell][s]) : 0.0f;
    q[cell] = other_delta ? value_of(kProduct, q_ahead[turn][cell]) : 0.0f;
    mask[cell] = mask_of(mask_ahead[turn][cell]);
    later_factor[cell] = factor[cell];
    take_reset(turn, cell);
}

// In 16-bit calls, the recurrent deltas may have the candidate's slot alone. The other gates' are their deltas.
#ifdef VKRNN_16BIT
#define RECURRENT_VIEW(slot) ((slot) == slot_of(CELL_CANDIDATE) ? kRecurrentDelta : kDelta)
#else
#define RECURRENT_VIEW(slot) kRecurrentDelta
#endif

INLINE void start_cell(Params p, Place place, const uint cell, int first, bool from_later) {
    locate_cell(p, place, cell);
    Element e = element_of(p, place, cell, first);
    int end = ends[cell], step = max(first, 0);
    UNROLL for (uint g = 0; g < CELL_GATES; ++g) v[cell][g] = 0.0f;
    UNROLL for (uint i = 0; i < CELL_VECTORS; ++i) v[cell][i] = value_of(kVectors, fetch_vector(p, e, i));
    training_at[cell] = cell_address(p, kTrainingState, e, step, end);
    upstream_at[cell] = cell_address(p, kUpstream, e, step, end);
    if (has_upstream_cell != 0) upstream_cell_at[cell] = cell_address(p, kUpstreamCell, e, step, end);
    delta_at[cell] = cell_address(p, kDelta, e, step, end);
    if (has_mask != 0) mask_at[cell] = cell_address(p, kMask, e, step + 1, end);
    if (has_reset != 0) {
        int later = min(first + 1, int(params_of(p).T) - 1) - lag;
        factor[cell] = load_tensor(kReset, cell_address(p, kReset, e, max(later, 0), end), 0);
        start_resets(p, cell, e, max(step - lag, 0), end);
    }
    if (needs_hidden) {
        init_hidden_at[cell] = unit_address(p, kInitHidden, row_address(p, kInitHidden, e.direction, 0, e.n), 0, e.j);
        hidden_at[cell] = step == 0 ? init_hidden_at[cell] : cell_address(p, kHidden, e, step - 1, end);
        after[cell][0] = load_tensor(kHidden, cell_address(p, kHidden, e, step, end), 0);
    }
    if (needs_cell) {
        init_cell_at[cell] = unit_address(p, kInitCell, row_address(p, kInitCell, e.direction, 0, e.n), 0, e.j);
        cell_at[cell] = step == 0 ? init_cell_at[cell] : cell_address(p, kCell, e, step - 1, end);
        state_slot[cell] = step == 0 ? init_slot : slot_bytes(p, kCell);
        UNROLL for (uint s = 1; s < CELL_STATES; ++s)
            after[cell][s] =
                load_tensor(kCell, state_at(cell_address(p, kCell, e, step, end), s, slot_bytes(p, kCell)), 0);
    }
    if (other_delta) {
        product_at[cell] = cell_address(p, kProduct, e, step, end);
        recurrent_delta_at[cell] = cell_address(p, kRecurrentDelta, e, step, end);
    }
    last[cell][0] = load_view(p, kLastHidden, e.direction, 0, e.n, 0, e.j);
    carry[cell][0] = from_later ? load_view(p, kCarryHidden, e.direction, 0, e.n, 0, e.j) : 0.0f;
    UNROLL for (uint s = 1; s < CELL_STATES; ++s) {
        last[cell][s] = load_view(p, kLastCell, e.direction, 0, e.n, s - 1, e.j);
        carry[cell][s] = from_later ? load_view(p, kCarryCell, e.direction, 0, e.n, s - 1, e.j) : 0.0f;
    }
    if (there[cell] && from_later && first + 1 < end)
        UNROLL for (uint slot = 0; slot < CELL_GATES; ++slot)
            set_operand(0, place, cell, slot, e.j,
                        load_view(p, RECURRENT_VIEW(slot), e.direction, first + 1, e.n, slot, e.j));
    UNROLL for (uint turn = 0; turn < turns; ++turn) read_ahead(turn, cell, first - int(turn));
}

// Computes the deltas and the next operand. Everything else is stored later, because the next step's products wait for
// the operand.
INLINE void form_cell(Params p, Place place, const uint turn, const uint cell, int k) {
    bool is_last = k == ends[cell] - 1;
    Real up[CELL_STATES], states[CELL_STATES], reset_before[CELL_STATES];
    UNROLL for (uint s = 0; s < CELL_STATES; ++s) up[s] = is_last ? last[cell][s] : carry[cell][s];
    if (!is_last) up[0] += sums[cell][0] * mask[cell];
    if (!is_last && has_reset != 0 && k + 1 >= lag) {
        if (keeps_reset_up != 0 && k < ends[cell] && there[cell]) {
            Element e = element_of(p, place, cell, k + 1 - lag);
            store_view(p, kResetUp, e.direction, e.k, e.n, 0, e.j, up[0]);
            UNROLL for (uint s = 1; s < CELL_STATES; ++s)
                store_view(p, kResetUpCell, e.direction, e.k, e.n, s - 1, e.j, up[s]);
        }
        UNROLL for (uint s = 0; s < CELL_STATES; ++s) up[s] = part(factor_of(s, later_factor[cell]), up[s]);
    }
    if (!is_last) up[0] = passed_on(up[0]);
    if (k < 0) {
        UNROLL for (uint s = 0; s < CELL_STATES; ++s) carry[cell][s] = up[s];
        return;
    }
    UNROLL for (uint s = 0; s < CELL_STATES; ++s) {
        if (adds(s)) up[s] += upstream[cell][s];
        states[s] = needs(s) ? after[cell][s] : 0.0f;
        after[cell][s] = before[cell][s];
        reset_before[s] = before[cell][s];
        if (has_reset != 0 && k >= lag)
            reset_before[s] = blended(factor_of(s, factor[cell]), before[cell][s], start[cell][s]);
    }
    cell_backward(saved[cell], v[cell], reset_before, states, q[cell], up, dx[cell], dr[cell], carry[cell]);
    bool ended = has_lengths != 0 && k >= ends[cell];
    if (there[cell])
        UNROLL for (uint g = 0; g < CELL_GATES; ++g)
            set_operand(1 - turn % 2, place, cell, slot_of(g), unit_of(place, cell), ended ? 0.0f : dr[cell][g]);
}

// Stores the results that the next step does not wait for.
INLINE void store_cell(Params p, Place place, const uint cell, int k) {
    if (has_lengths != 0 && k >= ends[cell]) {
        Element e = element_of(p, place, cell, k);
        if (there[cell])
            UNROLL for (uint g = 0; g < CELL_GATES; ++g) {
                clear_view(p, kDelta, e.direction, k, e.n, slot_of(g), e.j);
                if (other_delta) clear_view(p, kRecurrentDelta, e.direction, k, e.n, slot_of(g), e.j);
            }
        return;
    }
    if (there[cell])
        UNROLL for (uint g = 0; g < CELL_GATES; ++g) {
            store_tensor(kDelta, gate_at(delta_at[cell], g, delta_slot), 0, dx[cell][g]);
            if (other_delta)
                store_tensor(kRecurrentDelta, gate_at(recurrent_delta_at[cell], g, recurrent_delta_slot), 0,
                             dr[cell][g]);
        }
    move(delta_at[cell], -delta_step, true);
    if (other_delta) move(recurrent_delta_at[cell], -recurrent_delta_step, true);
}

INLINE void make_step(Params p, Place place, const uint turn, int k, int end) {
    if (k > end) {
        if (!loads_weights) advance_inputs(turn, k - int(turns));
        multiply(p, place, turn % 2);
        if (loads_weights) advance_inputs(turn, k - int(turns));
        form_cell(p, place, turn, 0, k);
        UNROLL for (uint cell = 1; cell < cells; ++cell) form_cell(p, place, turn, cell, k);
        wait_for_operand();
        if (k >= 0) {
            store_cell(p, place, 0, k);
            UNROLL for (uint cell = 1; cell < cells; ++cell) store_cell(p, place, cell, k);
        }
    }
}

void main() {
    Params p = Params(push.params);
    Place place = this_place(p);
    int first = push.step, last_step = int(params_of(p).T) - 1;
    int end = max(first - int(push.steps), -1);   // one before the earliest step of this dispatch
    if (end < 0 && to_initial != 0) end = -2;
    bool from_later = first < last_step;          // an earlier dispatch stored the deltas of step first + 1
    start_slice(p, place);
    set_steps(p, place);
    start_cell(p, place, 0, first, from_later);
    UNROLL for (uint cell = 1; cell < cells; ++cell) start_cell(p, place, cell, first, from_later);
    wait_for_operand();

    for (int k = first; k > end; k -= int(turns)) {
        make_step(p, place, 0, k, end);
        make_step(p, place, 1, k - 1, end);
    }

    // The dispatch of the earlier steps continues from these gradients. Before step 0, they are those of the initial
    // state. A row without steps passes on the gradients of its last state.
    UNROLL for (uint cell = 0; cell < cells; ++cell)
        if (there[cell]) {
            Element e = element_of(p, place, cell, 0);
            if (has_lengths != 0 && ends[cell] == 0)
                UNROLL for (uint s = 0; s < CELL_STATES; ++s) carry[cell][s] = last[cell][s];
            store_view(p, kCarryHidden, e.direction, 0, e.n, 0, e.j, carry[cell][0]);
            UNROLL for (uint s = 1; s < CELL_STATES; ++s)
                store_view(p, kCarryCell, e.direction, 0, e.n, s - 1, e.j, carry[cell][s]);
        }
}
