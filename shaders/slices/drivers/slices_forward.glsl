// The forward steps of a slice. Per cell they compute the same as form_cell and store_cell of forward_cell.glsl.
#include "slices/slices.glsl"

// All inputs of a step besides the state, fetched `turns` steps ahead.
Loaded x_ahead[turns][cells][CELL_GATES], mask_ahead[turns][cells];
Address projected_at[cells], mask_at[cells];   // at the step to load next; the mask's is one step later
int projected_step, mask_step;
uint projected_slot;

// What a step writes.
Real before[cells][CELL_STATES], kept[cells][CELL_GATES];
Address hidden_at[cells], cell_at[cells], training_at[cells];   // at the step to store next
int hidden_step, state_step, training_step;
uint training_slot, state_slot;

Real bias[cells][CELL_GATES], v[cells][CELL_GATES];

// The inputs of the step, converted.
Real x[cells][CELL_GATES], mask[cells];

// Sets what is the same for all cells.
INLINE void set_steps(Params p, Place place) {
    projected_step = step_bytes(p, kProjected, place.direction);
    hidden_step = step_bytes(p, kHidden, place.direction);
    mask_step = has_mask != 0 ? step_bytes(p, kMask, place.direction) : 0;
    state_step = CELL_STATES > 1 ? step_bytes(p, kCell, place.direction) : 0;
    training_step = keep != 0 ? step_bytes(p, kTrainingState, place.direction) : 0;
    set_reset_steps(p, place.direction);
    projected_slot = slot_bytes(p, kProjected);
    training_slot = keep != 0 ? slot_bytes(p, kTrainingState) : 0;
    state_slot = CELL_STATES > 1 ? slot_bytes(p, kCell) : 0;
}

// Fetches the inputs of step `step`. Must be called for the steps in order. The mask is that of the operand of the next
// product.
INLINE void read_ahead(const uint turn, const uint cell, int step) {
    UNROLL for (uint g = 0; g < CELL_GATES; ++g)
        x_ahead[turn][cell][g] = fetch_tensor(kProjected, gate_at(projected_at[cell], g, projected_slot), 0);
    move(projected_at[cell], projected_step, step + 1 < ends[cell]);
    if (has_mask != 0) {
        mask_ahead[turn][cell] = fetch_tensor(kMask, mask_at[cell], 0);
        move(mask_at[cell], mask_step, step + 2 < ends[cell]);
    }
    if (has_reset != 0) read_reset_ahead(turn, cell, 1, step + 2 - lag < ends[cell]);
}

// Converts the inputs of a step.
INLINE void take_inputs(const uint turn, const uint cell) {
    UNROLL for (uint g = 0; g < CELL_GATES; ++g)
        x[cell][g] = value_of(kProjected, x_ahead[turn][cell][g]) + bias[cell][g];
    mask[cell] = mask_of(mask_ahead[turn][cell]);
    take_reset(turn, cell);
}

INLINE void start_cell(Params p, Place place, const uint cell, int first) {
    locate_cell(p, place, cell);
    Element e = element_of(p, place, cell, first);
    int end = ends[cell];
    UNROLL for (uint g = 0; g < CELL_GATES; ++g) {
        bias[cell][g] = value_of(kBias, fetch_bias(p, e, g));
        v[cell][g] = 0.0f;
    }
    UNROLL for (uint i = 0; i < CELL_VECTORS; ++i) v[cell][i] = value_of(kVectors, fetch_vector(p, e, i));
    projected_at[cell] = cell_address(p, kProjected, e, first, end);
    hidden_at[cell] = cell_address(p, kHidden, e, first, end);
    if (has_mask != 0) mask_at[cell] = cell_address(p, kMask, e, first + 1, end);
    if (keep != 0) training_at[cell] = cell_address(p, kTrainingState, e, first, end);
    if (CELL_STATES > 1) cell_at[cell] = cell_address(p, kCell, e, first, end);
    before[cell][0] = load_carried(p, kHidden, kCarryHidden, kInitHidden, e.direction, first, e.n, 0, e.j);
    UNROLL for (uint s = 1; s < CELL_STATES; ++s)
        before[cell][s] = load_carried(p, kCell, kCarryCell, kInitCell, e.direction, first, e.n, s - 1, e.j);
    if (has_reset != 0) {
        start_resets(p, cell, e, first + 1 - lag, end);
        UNROLL for (uint s = 0; s < CELL_STATES; ++s)
            before[cell][s] = load_reset(p, e.direction, first, e.n, s, e.j, before[cell][s]);
    }
    if (there[cell])
        set_operand(0, place, cell, 0, e.j, before[cell][0] * load_mask(p, e.direction, first, e.n, e.j));
    UNROLL for (uint turn = 0; turn < turns; ++turn) read_ahead(turn, cell, first + int(turn));
}

// Returns a state after the next step's reset.
INLINE Real reset_state(const uint cell, const uint s, Real state) {
    return has_reset != 0 ? blended(factor_of(s, factor[cell]), state, start[cell][s]) : state;
}

// Computes the new state and the next operand. Everything else is stored later, because the next step's products wait
// for the operand.
INLINE void form_cell(Place place, const uint turn, const uint cell, int k) {
    Real after[CELL_STATES];
    cell_forward(x[cell], sums[cell], v[cell], before[cell], after, kept[cell]);
    UNROLL for (uint s = 0; s < CELL_STATES; ++s) before[cell][s] = after[s];
    bool ended = has_lengths != 0 && k >= ends[cell];
    if (there[cell])
        set_operand(1 - turn % 2, place, cell, 0, unit_of(place, cell),
                    ended ? 0.0f : reset_state(cell, 0, after[0]) * mask[cell]);
}

// Stores the results that the next step does not wait for.
INLINE void store_cell(Params p, Place place, const uint cell, int k) {
    if (has_lengths != 0 && k >= ends[cell]) {
        if (there[cell]) clear_step(p, element_of(p, place, cell, k));
        return;
    }
    if (there[cell]) {
        store_tensor(kHidden, hidden_at[cell], 0, before[cell][0]);
        UNROLL for (uint s = 1; s < CELL_STATES; ++s)
            store_tensor(kCell, state_at(cell_at[cell], s, state_slot), 0, before[cell][s]);
        if (keep != 0)
            UNROLL for (uint g = 0; g < CELL_GATES; ++g)
                store_tensor(kTrainingState, gate_at(training_at[cell], g, training_slot), 0, kept[cell][g]);
    }
    move(hidden_at[cell], hidden_step, true);
    if (CELL_STATES > 1) move(cell_at[cell], state_step, true);
    if (keep != 0) move(training_at[cell], training_step, true);
}

INLINE void make_step(Params p, Place place, const uint turn, int k, int end) {
    if (k < end) {
        if (!loads_weights) advance_inputs(turn, k + int(turns));
        multiply(p, place, turn % 2);
        if (loads_weights) advance_inputs(turn, k + int(turns));
        form_cell(place, turn, 0, k);
        UNROLL for (uint cell = 1; cell < cells; ++cell) form_cell(place, turn, cell, k);
        wait_for_operand();
        store_cell(p, place, 0, k);
        UNROLL for (uint cell = 1; cell < cells; ++cell) store_cell(p, place, cell, k);
        // The states of the dispatch's last step are not reset, because the next dispatch does it.
        if (has_reset != 0 && k + 1 < end)
            UNROLL for (uint cell = 0; cell < cells; ++cell)
                UNROLL for (uint s = 0; s < CELL_STATES; ++s)
                    before[cell][s] = reset_state(cell, s, before[cell][s]);
    }
}

void main() {
    Params p = Params(push.params);
    Place place = this_place(p);
    int first = push.step, end = min(first + int(push.steps), int(params_of(p).T));
    start_slice(p, place);
    set_steps(p, place);
    start_cell(p, place, 0, first);
    UNROLL for (uint cell = 1; cell < cells; ++cell) start_cell(p, place, cell, first);
    wait_for_operand();

    for (int k = first; k < end; k += int(turns)) {
        make_step(p, place, 0, k, end);
        make_step(p, place, 1, k + 1, end);
    }
#ifdef VKRNN_16BIT
    // The dispatch of the later steps continues from the exact states.
    UNROLL for (uint cell = 0; cell < cells; ++cell)
        if (there[cell]) {
            Element e = element_of(p, place, cell, end - 1);
            if (is_16bit(kHidden)) store_view(p, kCarryHidden, e.direction, e.k & 1, e.n, 0, e.j, before[cell][0]);
            UNROLL for (uint s = 1; s < CELL_STATES; ++s)
                if (is_16bit(kCell)) store_view(p, kCarryCell, e.direction, 0, e.n, s - 1, e.j, before[cell][s]);
        }
#endif
}
