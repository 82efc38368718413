// Loads all that an invocation's only cell needs besides the product, before that is formed.
CellInputs load_early(Params p, Tile tile, int step) {
    Element e;
    CellInputs inputs;
    if (one_cell && find_cell(p, tile, invocation(), step, e)) inputs = load_cell(p, e);
    return inputs;
}
