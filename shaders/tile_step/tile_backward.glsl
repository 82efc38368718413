// A backward step of a tile's rows and units, apart from the recurrent product, which is the gradient that comes from
// the later step. Step -1 only takes this gradient from step 0: it is the gradient of the initial state.
#ifndef VKRNN_TILE_BACKWARD_GLSL
#define VKRNN_TILE_BACKWARD_GLSL
#include "common/backward_cell.glsl"
#include "tile_step/hand_over.glsl"

CONSTANT uint cells = tile_rows * tile_columns;
CONSTANT uint cells_each = (cells + invocations - 1) / invocations;
CONSTANT bool one_cell = cells_each == 1;   // an invocation has at most one cell, whose inputs can be loaded early

// The last step has no later one to take a gradient from.
INLINE bool has_product(Params p, int step) { return phase == 2 || step + 1 < int(params_of(p).T); }
INLINE uint operand_region(int step) { return phase == 2 ? step & 1 : step + 1 & 1; }

INLINE bool find_cell(Params p, Tile tile, uint cell, int step, OUT(Element) e) {
    e = Element(tile.direction, tile.first_row + cell / tile_columns,
                tile.column_tile * tile_columns + cell % tile_columns, step);
    return cell < cells && e.n < params_of(p).N && e.j < params_of(p).H;
}

INLINE void store_operands(Params p, Tile tile, int step, Real dr[cells_each][CELL_GATES]) {
    Element e;
    uint region = step & 1;
#ifdef MATRIX_UNITS
    float absmax = 0.0f;
    for (uint i = 0; i < cells_each; ++i)
        for (uint g = 0; g < CELL_GATES; ++g)
            if (forms(g)) absmax = max(absmax, finite(abs(dr[i][g])));
    set_scale(p, tile, region, absmax);
#endif
    for (uint i = 0; i < cells_each; ++i) {
        bool there = find_cell(p, tile, i * invocations + invocation(), step, e);
        for (uint g = 0; g < CELL_GATES; ++g)
            if (there && forms(g)) store_operand(p, e.direction, region, e.n, slot_of(g), e.j, dr[i][g]);
    }
}

INLINE void finish_step(Params p, Tile tile, int step, CellInputs early) {
    Element e;
    CellResults made;
    bool product = has_product(p, step);
    Real dr[cells_each][CELL_GATES];
    for (uint i = 0; i < cells_each; ++i) {
        uint cell = i * invocations + invocation();
        for (uint g = 0; g < CELL_GATES; ++g) dr[i][g] = 0.0f;
        if (find_cell(p, tile, cell, step, e)) {
            CellInputs inputs;
            if (one_cell)
                inputs = early;
            else
                inputs = fetch_cell(p, e);
            Real through = product ? tile_sum(cell / tile_columns, cell % tile_columns) : 0.0f;
            made = form_cell(p, e, inputs, through);
            COPY(dr[i], made.dr);
            if (!one_cell) store_cell(p, e, made);
        }
    }
    // The operand of the next product is stored first, because other workgroups may wait for it.
    if (step >= 0) {
        store_operands(p, tile, step, dr);
        hand_over(p, tile);
    }
    if (one_cell && find_cell(p, tile, invocation(), step, e)) store_cell(p, e, made);
}

#endif
