// Steps forward of a slice. A cell does what cell_step of forward_cell.glsl does.
#include "forward_cell.glsl"
#define PRODUCTS CELL_GATES
#include "slices.glsl"

// What a step reads besides the state.
struct Ahead {
    Real x[CELL_GATES], mask;
};

struct Tracks {
    Track projected, mask;      // at the step that is read next, the mask at the one after
    Track hidden, cell, saved;  // at the step that is stored next
    uint projected_slots[CELL_GATES], saved_slots[CELL_GATES];
};

Tracks find_tracks(Params p, Element e, int step, int end) {
    Tracks tracks;
    tracks.projected = track(p, kProjected, e, step, end);
    tracks.hidden = track(p, kHidden, e, step, end);
    if (has_mask != 0) tracks.mask = track(p, kMask, e, step + 1, end);
#if CELL_STATES > 1
    tracks.cell = track(p, kCell, e, step, end);
#endif
    find_slots(p, kProjected, tracks.projected_slots);
    if (keep != 0) {
        tracks.saved = track(p, kSaved, e, step, end);
        find_slots(p, kSaved, tracks.saved_slots);
    }
    return tracks;
}

// Reads what step `step` needs, for steps in their order. The mask is that of the next product's operand.
Ahead read_ahead(inout Tracks tracks, int step, int end) {
    Ahead ahead;
    [[unroll]] for (uint g = 0; g < CELL_GATES; ++g)
        ahead.x[g] = load(tracks.projected.at + tracks.projected_slots[g], 0);
    ahead.mask = has_mask != 0 ? load(tracks.mask.at, 0) : 1.0;
    move(tracks.projected, step + 1 < end);
    if (has_mask != 0) move(tracks.mask, step + 2 < end);
    return ahead;
}

void main() {
    Params p = Params(push.params);
    Place place = this_place();
    int first = push.step, end = min(first + int(push.steps), int(p.params.T));
    start_slice(p, place);

    Element e;
    bool there[cells];
    int ends[cells];
    Tracks tracks[cells];
    Ahead ahead[turns][cells];
    Real bias[cells][CELL_GATES], v[cells][CELL_GATES], before[cells][CELL_STATES];
    [[unroll]] for (uint cell = 0; cell < cells; ++cell) {
        there[cell] = find_cell(p, place, cell, first, e);
        if (!there[cell]) continue;
        [[unroll]] for (uint g = 0; g < CELL_GATES; ++g) {
            bias[cell][g] = load_view(p, kBias, e.direction, 0, 0, slot_of(g), e.j);
            v[cell][g] = 0.0;
        }
        [[unroll]] for (uint i = 0; i < CELL_VECTORS; ++i)
            v[cell][i] = load_view(p, kVectors, e.direction, 0, 0, CELL_VECTORS > 1 ? slot_of(i) : 0, e.j);
        ends[cell] = length_of(p, e.n);
        tracks[cell] = find_tracks(p, e, first, ends[cell]);
        before[cell][0] = load_previous(p, kHidden, kInitHidden, e.direction, first, e.n, e.j);
#if CELL_STATES > 1
        before[cell][1] = load_previous(p, kCell, kInitCell, e.direction, first, e.n, e.j);
#endif
        set_operand(0, place, cell, e.j, before[cell][0] * load_mask(p, e.direction, first, e.n, e.j));
        [[unroll]] for (uint turn = 0; turn < turns; ++turn)
            ahead[turn][cell] = read_ahead(tracks[cell], first + int(turn), ends[cell]);
    }
    barrier();

    for (int k0 = first; k0 < end; k0 += int(turns))
        [[unroll]] for (uint turn = 0; turn < turns; ++turn) {
            int k = k0 + int(turn);
            if (k < end) {
                Real sums[cells][PRODUCTS], kept[cells][CELL_GATES];
                multiply(p, place, turn, sums);
                [[unroll]] for (uint cell = 0; cell < cells; ++cell)
                    if (there[cell]) {
                        bool ended = has_lengths != 0 && k >= ends[cell];
                        Real x[CELL_GATES], after[CELL_STATES];
                        [[unroll]] for (uint g = 0; g < CELL_GATES; ++g) x[g] = ahead[turn][cell].x[g] + bias[cell][g];
                        cell_forward(x, sums[cell], v[cell], before[cell], after, kept[cell]);
                        before[cell] = after;
                        set_operand(1 - turn, place, cell, unit_of(place, cell), ended ? 0.0 : after[0] * ahead[turn][cell].mask);
                    }
                barrier();
                // What the next step's products do not wait for.
                [[unroll]] for (uint cell = 0; cell < cells; ++cell)
                    if (there[cell]) {
                        if (has_lengths != 0 && k >= ends[cell]) {
                            find_cell(p, place, cell, k, e);
                            clear_step(p, e);
                        } else {
                            store(tracks[cell].hidden.at, 0, before[cell][0]);
                            move(tracks[cell].hidden, true);
#if CELL_STATES > 1
                            store(tracks[cell].cell.at, 0, before[cell][1]);
                            move(tracks[cell].cell, true);
#endif
                            if (keep != 0) {
                                [[unroll]] for (uint g = 0; g < CELL_GATES; ++g)
                                    store(tracks[cell].saved.at + tracks[cell].saved_slots[g], 0, kept[cell][g]);
                                move(tracks[cell].saved, true);
                            }
                        }
                        ahead[turn][cell] = read_ahead(tracks[cell], k + int(turns), ends[cell]);
                    }
            }
        }
}
