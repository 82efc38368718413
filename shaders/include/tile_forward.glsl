// A forward step of a tile's rows and units: the product, then the cells. Included before it: forward_cell.glsl, and what
// forms the product and keeps the operand (tiles.glsl, matrices/tiles.glsl).
const uint products = end_product - first_product;
const uint units = tile_columns / products;
const uint cells = tile_rows * units;
const bool one_cell = cells <= invocations;   // of an invocation: its loads need not wait for the product

bool find_cell(Params p, Tile tile, uint cell, out Element e) {
    e = Element(tile.direction, tile.first_row + cell / units, tile.column_tile * units + cell % units, push.step);
    return cell < cells && e.n < p.params.N && e.j < p.params.H;
}

void finish(Params p, uint cell, Element e, CellInputs inputs) {
    Real r[CELL_GATES];
    for (uint g = 0; g < CELL_GATES; ++g) r[g] = 0.0;
    for (uint g = first_product; g < end_product; ++g)
        r[g] = tile_sum(cell / units, cell % units * products + g - first_product);
    Real next = cell_step(p, e, inputs, r);
    store_operand(p, e.direction, phase == 1 ? 2 : e.k + 1 & 1, e.n, 0, e.j, next);
}

void main() {
    Params p = Params(push.params);
    Tile tile = this_tile(p);
    uint region = phase == 2 ? 2 : push.step & 1;
    Element e;
    if (one_cell) {
        uint cell = invocation();
        bool there = find_cell(p, tile, cell, e);
        CellInputs inputs;
        if (there) inputs = load_cell(p, e);
        multiply(p, tile, region);
        if (there) finish(p, cell, e, inputs);
    } else {
        multiply(p, tile, region);
        for (uint cell = invocation(); cell < cells; cell += invocations)
            if (find_cell(p, tile, cell, e)) finish(p, cell, e, load_cell(p, e));
    }
}
