// A forward step of a tile's rows and units, apart from the recurrent product.
#ifndef VKRNN_TILE_FORWARD_GLSL
#define VKRNN_TILE_FORWARD_GLSL
#include "common/forward_cell.glsl"
#include "tile_step/hand_over.glsl"

CONSTANT uint products = end_product - first_product;
CONSTANT uint units = tile_columns / products;
CONSTANT uint cells = tile_rows * units;
// An invocation has at most one cell, whose inputs can be loaded before the product.
CONSTANT bool one_cell = cells <= invocations;

INLINE bool has_product(Params p, int step) { return true; }
INLINE uint operand_region(int step) { return phase == 2 ? 2 : step & 1; }
INLINE uint unit_tiles(Params p) { return (params_of(p).H + units - 1) / units; }

INLINE bool find_cell(Params p, Tile tile, uint cell, int step, OUT(Element) e) {
    e = Element(tile.direction, tile.first_row + cell / units, tile.column_tile * units + cell % units, step);
    return cell < cells && e.n < params_of(p).N && e.j < params_of(p).H;
}

// Computes a cell's results and stores the operand of the next product.
INLINE CellResults finish_cell(Params p, uint cell, Element e, CellInputs inputs) {
    Real r[CELL_GATES];
    for (uint g = 0; g < CELL_GATES; ++g) r[g] = 0.0f;
    for (uint g = first_product; g < end_product; ++g)
        r[g] = tile_sum(cell / units, cell % units * products + g - first_product);
    CellResults made = form_cell(p, e, inputs, r);
    store_operand(p, e.direction, phase == 1 ? 2 : e.k + 1 & 1, e.n, 0, e.j, made.operand);
    return made;
}

// Returns whether an invocation of a loop with waits has two cells, both of which it hands over before it stores their
// other results. Operands with two parts leave no registers for that.
INLINE bool stores_two_late() {
#ifdef PERSISTENT
    return right_parts == 1 && cells <= 2 * invocations;   // and not one_cell
#else
    return false;
#endif
}

INLINE void finish_step(Params p, Tile tile, int step, CellInputs early) {
    Element e;
    // The operand is stored first, because other workgroups may wait for it.
    if (one_cell) {
        bool there = find_cell(p, tile, invocation(), step, e);
        CellResults made;
        if (there) made = finish_cell(p, invocation(), e, early);
        hand_over(p, tile);
        if (there) store_cell(p, e, made);
    } else if (stores_two_late()) {
        CellResults made[2];
        UNROLL for (uint i = 0; i < 2; ++i) {
            uint cell = i * invocations + invocation();
            if (find_cell(p, tile, cell, step, e)) made[i] = finish_cell(p, cell, e, fetch_cell(p, e));
        }
        hand_over(p, tile);
        UNROLL for (uint i = 0; i < 2; ++i)
            if (find_cell(p, tile, i * invocations + invocation(), step, e)) store_cell(p, e, made[i]);
    } else {
        for (uint cell = invocation(); cell < cells; cell += invocations)
            if (find_cell(p, tile, cell, step, e)) store_cell(p, e, finish_cell(p, cell, e, fetch_cell(p, e)));
        hand_over(p, tile);
    }
}

#endif
