// The product of a tile: on matrix units in a driver that defines MATRIX_UNITS first, else with plain multiply-adds.
// Either file has the type Tile and the functions multiply, tile_sum and store_operand.
#ifndef VKRNN_TILE_PRODUCT_GLSL
#define VKRNN_TILE_PRODUCT_GLSL
#ifdef MATRIX_UNITS
#include "matrices/matrix_tiles.glsl"
#else
#include "tiles/tiles.glsl"
#endif

// Tells other workgroups that this tile's part of the next product's operand is stored.
#ifdef PERSISTENT
DECLARE(void hand_over(Params p, Tile tile))
#else
INLINE void hand_over(Params p, Tile tile) {}   // none of them waits
#endif
#endif
