// Tells other workgroups that this tile's part of the next product's operand is stored.
#ifndef VKRNN_HAND_OVER_GLSL
#define VKRNN_HAND_OVER_GLSL

#ifdef PERSISTENT
DECLARE(void hand_over(Params p, Tile tile))
#else
INLINE void hand_over(Params p, Tile tile) {}   // none of them waits
#endif
#endif
