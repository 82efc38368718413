// Steps backward of a slice. Step -1 only takes what step 0 hands down: the gradient of the initial state. A cell does what
// cell_step of backward_cell.glsl does.
#include "backward_cell.glsl"
#define PRODUCTS 1
#include "slices.glsl"

layout(constant_id = kToInitial) const uint to_initial = 0;

// What a step reads besides what the later step hands down.
struct Ahead {
    Real kept[CELL_GATES], before[CELL_STATES], upstream, mask, q;
};

struct Tracks {
    Track saved, upstream, product;      // at the step that is read next
    Track before;                        // at the one before it
    Track mask;                          // at the one after it
    Track delta, recurrent_delta;        // at the step that is stored next
    Address init;                        // where `before` of step 0 is
    uint saved_slots[CELL_GATES], delta_slots[CELL_GATES], recurrent_delta_slots[CELL_GATES];
};

// The state that the cell's gradient needs from before the step.
#if CELL_STATES > 1
const uint kBefore = kCell, kBeforeFirst = kInitCell, kStateBefore = 1;
#else
const uint kBefore = kHidden, kBeforeFirst = kInitHidden, kStateBefore = 0;
#endif
#if CELL_STATES > 1 || defined(CELL_KEEPS_HIDDEN)
const bool needs_before = true;
#else
const bool needs_before = false;
#endif
#ifdef CELL_CANDIDATE
const bool other_delta = reset_after != 0;   // the products multiply other deltas than the gates have
#else
const bool other_delta = false;
#endif

Tracks find_tracks(Params p, Element e, int step, int end) {
    Tracks tracks;
    step = max(step, 0);
    tracks.saved = track(p, kSaved, e, step, end);
    tracks.upstream = track(p, kUpstream, e, step, end);
    tracks.delta = track(p, kDelta, e, step, end);
    find_slots(p, kSaved, tracks.saved_slots);
    find_slots(p, kDelta, tracks.delta_slots);
    if (has_mask != 0) tracks.mask = track(p, kMask, e, step + 1, end);
    if (needs_before) {
        tracks.before = track(p, kBefore, e, step - 1, end);
        tracks.init = unit_address(p, kBeforeFirst, row_address(p, kBeforeFirst, e.direction, 0, e.n), 0, e.j);
        if (step == 0) tracks.before.at = tracks.init;
    }
    if (other_delta) {
        tracks.product = track(p, kProduct, e, step, end);
        tracks.recurrent_delta = track(p, kRecurrentDelta, e, step, end);
        find_slots(p, kRecurrentDelta, tracks.recurrent_delta_slots);
    }
    return tracks;
}

// Reads what step `step` needs, for steps in their order. The mask is that of the operand of the product that is handed
// down. Step -1 uses none of what only a step has.
Ahead read_ahead(inout Tracks tracks, int step, int end) {
    Ahead ahead;
    bool moves = 0 < step && step < end;
    [[unroll]] for (uint g = 0; g < CELL_GATES; ++g) ahead.kept[g] = load(tracks.saved.at + tracks.saved_slots[g], 0);
    move_back(tracks.saved, moves);
    ahead.upstream = load(tracks.upstream.at, 0);
    move_back(tracks.upstream, moves);
    [[unroll]] for (uint s = 0; s < CELL_STATES; ++s) ahead.before[s] = 0.0;
    if (needs_before) {
        ahead.before[kStateBefore] = load(tracks.before.at, 0);
        move_back(tracks.before, 1 < step && step <= end);
        if (step == 1) tracks.before.at = tracks.init;
    }
    ahead.mask = 1.0;
    if (has_mask != 0) {
        ahead.mask = load(tracks.mask.at, 0);
        move_back(tracks.mask, 0 <= step && step + 1 < end);
    }
    ahead.q = 0.0;
    if (other_delta) {
        ahead.q = load(tracks.product.at, 0);
        move_back(tracks.product, moves);
    }
    return ahead;
}

void main() {
    Params p = Params(push.params);
    Place place = this_place();
    uint H = p.params.H;
    int first = push.step, last_step = int(p.params.T) - 1;
    int end = max(first - int(push.steps), -1);   // the step before the last one made
    if (end < 0 && to_initial != 0) end = -2;
    start_slice(p, place);

    Element e;
    bool there[cells];
    int ends[cells];
    Tracks tracks[cells];
    Ahead ahead[turns][cells];
    Real v[cells][CELL_GATES], last[cells][CELL_STATES], carry[cells][CELL_STATES], after[cells][CELL_STATES];
    bool from_later = first < last_step;   // a dispatch before this one left the deltas of step first + 1
    [[unroll]] for (uint cell = 0; cell < cells; ++cell) {
        there[cell] = find_cell(p, place, cell, first, e);
        if (!there[cell]) continue;
        [[unroll]] for (uint g = 0; g < CELL_GATES; ++g) v[cell][g] = 0.0;
        [[unroll]] for (uint i = 0; i < CELL_VECTORS; ++i)
            v[cell][i] = load_view(p, kVectors, e.direction, 0, 0, CELL_VECTORS > 1 ? slot_of(i) : 0, e.j);
        ends[cell] = length_of(p, e.n);
        tracks[cell] = find_tracks(p, e, first, ends[cell]);
        [[unroll]] for (uint s = 0; s < CELL_STATES; ++s) {
            last[cell][s] = load_view(p, kLastHidden + s, e.direction, 0, e.n, 0, e.j);
            carry[cell][s] = from_later ? load_view(p, kCarryHidden + s, e.direction, 0, e.n, 0, e.j) : 0.0;
            after[cell][s] = 0.0;
        }
        if (needs_before) after[cell][kStateBefore] = load(track(p, kBefore, e, max(first, 0), ends[cell]).at, 0);
        if (from_later && first + 1 < ends[cell])
            [[unroll]] for (uint slot = 0; slot < CELL_GATES; ++slot)
                set_operand(0, place, cell, slot * H + e.j,
                            load_view(p, kRecurrentDelta, e.direction, first + 1, e.n, slot, e.j));
        [[unroll]] for (uint turn = 0; turn < turns; ++turn)
            ahead[turn][cell] = read_ahead(tracks[cell], first - int(turn), ends[cell]);
    }
    barrier();

    for (int k0 = first; k0 > end; k0 -= int(turns))
        [[unroll]] for (uint turn = 0; turn < turns; ++turn) {
            int k = k0 - int(turn);
            if (k > end) {
                Real through[cells][PRODUCTS], dx[cells][CELL_GATES], dr[cells][CELL_GATES];
                multiply(p, place, turn, through);
                [[unroll]] for (uint cell = 0; cell < cells; ++cell)
                    if (there[cell]) {
                        bool ended = has_lengths != 0 && k >= ends[cell];
                        Ahead now = ahead[turn][cell];
                        Real up[CELL_STATES];
                        up = carry[cell];
                        if (k == ends[cell] - 1)
                            up = last[cell];
                        else
                            up[0] += through[cell][0] * now.mask;
                        if (k < 0) {
                            carry[cell] = up;
                        } else {
                            up[0] += now.upstream;
                            cell_backward(now.kept, v[cell], now.before, after[cell], now.q, up, dx[cell], dr[cell],
                                          carry[cell]);
                            [[unroll]] for (uint g = 0; g < CELL_GATES; ++g)
                                set_operand(1 - turn, place, cell, slot_of(g) * H + unit_of(place, cell),
                                            ended ? 0.0 : dr[cell][g]);
                            after[cell] = now.before;
                        }
                    }
                barrier();
                // What the next step's product does not wait for.
                [[unroll]] for (uint cell = 0; cell < cells; ++cell)
                    if (there[cell] && k >= 0) {
                        if (has_lengths != 0 && k >= ends[cell]) {
                            find_cell(p, place, cell, k, e);
                            [[unroll]] for (uint g = 0; g < CELL_GATES; ++g) {
                                clear_view(p, kDelta, e.direction, k, e.n, slot_of(g), e.j);
                                if (other_delta) clear_view(p, kRecurrentDelta, e.direction, k, e.n, slot_of(g), e.j);
                            }
                        } else {
                            [[unroll]] for (uint g = 0; g < CELL_GATES; ++g)
                                store(tracks[cell].delta.at + tracks[cell].delta_slots[g], 0, dx[cell][g]);
                            move_back(tracks[cell].delta, true);
                            if (other_delta) {
                                [[unroll]] for (uint g = 0; g < CELL_GATES; ++g)
                                    store(tracks[cell].recurrent_delta.at + tracks[cell].recurrent_delta_slots[g], 0,
                                          dr[cell][g]);
                                move_back(tracks[cell].recurrent_delta, true);
                            }
                        }
                        ahead[turn][cell] = read_ahead(tracks[cell], k - int(turns), ends[cell]);
                    }
            }
        }

    // For the dispatch of the steps before these, and as the gradient of the initial state.
    [[unroll]] for (uint cell = 0; cell < cells; ++cell)
        if (there[cell]) {
            find_cell(p, place, cell, 0, e);
            [[unroll]] for (uint s = 0; s < CELL_STATES; ++s)
                store_view(p, kCarryHidden + s, e.direction, 0, e.n, 0, e.j, carry[cell][s]);
        }
}
