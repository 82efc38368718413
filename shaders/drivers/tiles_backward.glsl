// One time step backward as tiles: what the later step hands down to a tile's rows and units, then their cells. Step -1
// only takes what step 0 hands down: the gradient of the initial state.
#include "backward_cell.glsl"
#include "tiles.glsl"

const uint cells = tile_rows * tile_columns;
const bool one_cell = cells <= invocations;   // of an invocation: its loads need not wait for the product

bool find_cell(Params p, Tile tile, uint cell, out Element e) {
    e = Element(tile.direction, tile.first_row + cell / tile_columns, tile.column_tile * tile_columns + cell % tile_columns,
                push.step);
    return cell < cells && e.n < p.params.N && e.j < p.params.H;
}

void finish(Params p, uint cell, Element e, CellInputs inputs, bool product) {
    Real through = product ? tile_sum(cell / tile_columns, cell % tile_columns) : 0.0;
    Real dr[CELL_GATES];
    cell_step(p, e, inputs, through, dr);
    if (e.k < 0) return;
    uint region = e.k & 1;
    for (uint g = 0; g < CELL_GATES; ++g) {
#ifdef CELL_FIRST_GATES
        if (phase == 2 && g != CELL_RESET) continue;
#endif
        store_operand(p, e.direction, region, e.n, slot_of(g), e.j, dr[g]);
    }
}

void main() {
    Params p = Params(push.params);
    Tile tile = this_tile(p);
    uint region = phase == 2 ? push.step & 1 : push.step + 1 & 1;
    // At the last step nothing is handed down.
    bool product = phase == 2 || push.step + 1 < int(p.params.T);
    Element e;
    if (one_cell) {
        uint cell = invocation();
        bool there = find_cell(p, tile, cell, e);
        CellInputs inputs;
        if (there) inputs = load_cell(p, e);
        if (product) multiply(p, tile, region);
        if (there) finish(p, cell, e, inputs, product);
    } else {
        if (product) multiply(p, tile, region);
        for (uint cell = invocation(); cell < cells; cell += invocations)
            if (find_cell(p, tile, cell, e)) finish(p, cell, e, load_cell(p, e), product);
    }
}
