// Loads the inputs of an invocation's cell before the product is computed, if it has only one cell.
CellInputs load_early(Params p, Tile tile, int step) {
    Element e;
    CellInputs inputs;
    if (one_cell && find_cell(p, tile, invocation(), step, e)) inputs = load_cell(p, e);
    return inputs;
}
