// A tile of a step's product: some batch rows times some columns, which a workgroup computes.
#ifndef VKRNN_TILE_GLSL
#define VKRNN_TILE_GLSL
#include "common/step.glsl"

struct Tile {
    uint direction;   // or a part: see step_abi.h
    uint first_row, column_tile;
};

// Returns this workgroup's tile of `rows` batch rows.
// Workgroups: x and y count (row tile, column tile), row tiles fastest; z is the direction or part.
INLINE Tile this_tile(Params p, uint rows) {
    uint row_tiles = (params_of(p).N + rows - 1) / rows;
    uint group = linear_group();
    return Tile(gl_WorkGroupID.z, group % row_tiles * rows, group / row_tiles);
}

#endif
