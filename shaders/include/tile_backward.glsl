// A backward step of a tile's rows and units: the product, which is what the later step hands down, then the cells. Step
// -1 only takes what step 0 hands down: the gradient of the initial state. Included before it: backward_cell.glsl, and
// what forms the product and keeps the operand (tiles.glsl, matrices/tiles.glsl).
const uint cells = tile_rows * tile_columns;
const uint cells_each = (cells + invocations - 1) / invocations;

bool find_cell(Params p, Tile tile, uint cell, out Element e) {
    e = Element(tile.direction, tile.first_row + cell / tile_columns, tile.column_tile * tile_columns + cell % tile_columns,
                push.step);
    return cell < cells && e.n < p.params.N && e.j < p.params.H;
}

// Whether this phase forms the delta of a gate.
bool forms(uint gate) {
#ifdef CELL_FIRST_GATES
    if (phase != 0) return (gate == CELL_RESET) == (phase == 2);
#endif
    return true;
}

void main() {
    Params p = Params(push.params);
    Tile tile = this_tile(p);
    // At the last step nothing is handed down.
    bool product = phase == 2 || push.step + 1 < int(p.params.T);

    // With a single cell its loads need not wait for the product.
    Element e;
    CellInputs early;
    if (cells_each == 1 && find_cell(p, tile, invocation(), e)) early = load_cell(p, e);
    if (product) multiply(p, tile, phase == 2 ? push.step & 1 : push.step + 1 & 1);

    Real dr[cells_each][CELL_GATES];
    for (uint i = 0; i < cells_each; ++i) {
        uint cell = i * invocations + invocation();
        for (uint g = 0; g < CELL_GATES; ++g) dr[i][g] = 0.0;
        if (!find_cell(p, tile, cell, e)) continue;
        CellInputs inputs;
        if (cells_each == 1)
            inputs = early;
        else
            inputs = load_cell(p, e);
        Real through = product ? tile_sum(cell / tile_columns, cell % tile_columns) : 0.0;
        cell_step(p, e, inputs, through, dr[i]);
    }
    if (push.step < 0) return;

    uint region = push.step & 1;
#ifdef TILE_SCALES
    Real largest[CELL_GATES];
    for (uint g = 0; g < CELL_GATES; ++g) {
        largest[g] = forms(g) ? 0.0 : -1.0;
        for (uint i = 0; i < cells_each && forms(g); ++i) largest[g] = max(largest[g], finite(abs(dr[i][g])));
    }
    set_scales(p, tile, region, largest);
#endif
    for (uint i = 0; i < cells_each; ++i) {
        if (!find_cell(p, tile, i * invocations + invocation(), e)) continue;
        for (uint g = 0; g < CELL_GATES; ++g)
            if (forms(g)) store_operand(p, e.direction, region, e.n, slot_of(g), e.j, dr[i][g]);
    }
}
