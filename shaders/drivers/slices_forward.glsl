// Steps forward of a slice. A cell does what cell_step of forward_cell.glsl does.
#include "forward_cell.glsl"
#define PRODUCTS CELL_GATES
#include "slices.glsl"

// What a step reads besides the state.
struct Ahead {
    Real x[CELL_GATES], mask;
};

struct Tracks {
    Track projected, mask, hidden, cell, saved;
    uint projected_slot, saved_slot;   // elements from slot to slot
};

Tracks find_tracks(Params p, Element e, int end) {
    Tracks tracks;
    tracks.projected = track(p, kProjected, e, end);
    tracks.hidden = track(p, kHidden, e, end);
    if (has_mask != 0) tracks.mask = track(p, kMask, e, end);
#if CELL_STATES > 1
    tracks.cell = track(p, kCell, e, end);
#endif
    if (keep != 0) tracks.saved = track(p, kSaved, e, end);
    tracks.projected_slot = p.params.strides[kProjected].slot;
    tracks.saved_slot = p.params.strides[kSaved].slot;
    return tracks;
}

// The mask is that of the next product's operand.
Ahead read_ahead(Tracks tracks, int step, int end, int last_step) {
    Ahead ahead;
    Address x = at_step(tracks.projected, step, end);
    [[unroll]] for (uint g = 0; g < CELL_GATES; ++g) ahead.x[g] = load(x, slot_of(g) * tracks.projected_slot);
    ahead.mask = has_mask != 0 ? load(at_step(tracks.mask, min(step + 1, last_step), end), 0) : 1.0;
    return ahead;
}

void main() {
    Params p = Params(push.params);
    Place place = this_place();
    int first = push.step, last_step = int(p.params.T) - 1, end = min(first + int(push.steps), last_step + 1);
    start_slice(p, place);

    Element e;
    bool there[cells];
    int ends[cells];
    Tracks tracks[cells];
    Ahead ahead[turns][cells];
    Real bias[CELL_GATES], v[CELL_GATES], before[cells][CELL_STATES];
    [[unroll]] for (uint cell = 0; cell < cells; ++cell) {
        there[cell] = find_cell(p, place, cell, first, e);
        if (!there[cell]) continue;
        [[unroll]] for (uint g = 0; g < CELL_GATES; ++g) {
            bias[g] = load_view(p, kBias, e.direction, 0, 0, slot_of(g), e.j);
            v[g] = 0.0;
        }
        [[unroll]] for (uint i = 0; i < CELL_VECTORS; ++i)
            v[i] = load_view(p, kVectors, e.direction, 0, 0, CELL_VECTORS > 1 ? slot_of(i) : 0, e.j);
        ends[cell] = length_of(p, e.n);
        tracks[cell] = find_tracks(p, e, ends[cell]);
        before[cell][0] = load_previous(p, kHidden, kInitHidden, e.direction, first, e.n, e.j);
#if CELL_STATES > 1
        before[cell][1] = load_previous(p, kCell, kInitCell, e.direction, first, e.n, e.j);
#endif
        set_operand(0, place, cell, e.j, before[cell][0] * load_mask(p, e.direction, first, e.n, e.j));
        [[unroll]] for (uint turn = 0; turn < turns; ++turn)
            ahead[turn][cell] = read_ahead(tracks[cell], min(first + int(turn), last_step), ends[cell], last_step);
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
                        [[unroll]] for (uint g = 0; g < CELL_GATES; ++g) x[g] = ahead[turn][cell].x[g] + bias[g];
                        cell_forward(x, sums[cell], v, before[cell], after, kept[cell]);
                        before[cell] = after;
                        set_operand(1 - turn, place, cell, place.unit, ended ? 0.0 : after[0] * ahead[turn][cell].mask);
                    }
                barrier();
                // What the next step's products do not wait for.
                [[unroll]] for (uint cell = 0; cell < cells; ++cell)
                    if (there[cell]) {
                        if (has_lengths != 0 && k >= ends[cell]) {
                            find_cell(p, place, cell, k, e);
                            clear_step(p, e);
                        } else {
                            store(at_step(tracks[cell].hidden, k, ends[cell]), 0, before[cell][0]);
#if CELL_STATES > 1
                            store(at_step(tracks[cell].cell, k, ends[cell]), 0, before[cell][1]);
#endif
                            if (keep != 0) {
                                Address saved = at_step(tracks[cell].saved, k, ends[cell]);
                                [[unroll]] for (uint g = 0; g < CELL_GATES; ++g)
                                    store(saved, slot_of(g) * tracks[cell].saved_slot, kept[cell][g]);
                            }
                        }
                        ahead[turn][cell] =
                            read_ahead(tracks[cell], min(k + int(turns), last_step), ends[cell], last_step);
                    }
            }
        }
}
