// Runs one step, or one phase of a step, per dispatch. Include tile_forward.glsl or tile_backward.glsl first.
void main() {
    Params p = Params(push.params);
    Tile tile = this_tile(p);
    CellInputs early = load_early(p, tile, push.step);
    if (has_product(p, push.step)) multiply(p, tile, operand_region(push.step));
    finish_step(p, tile, push.step, early);
}
