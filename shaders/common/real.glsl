// The floating-point type of a kernel. Each kernel is built twice: for float32, and with VKRNN_FLOAT64 for float64.
#ifndef VKRNN_REAL_GLSL
#define VKRNN_REAL_GLSL
#include "common/language.glsl"

// SPECIALIZED_REAL(id, name) is a number in the specialization constants from `id` on, used as name().
#ifdef VKRNN_FLOAT64
#define Real double
#define Real4 dvec4
#define SPECIALIZED_REAL(id, name)              \
    SPECIALIZED(id, uint, name##_low, 0)        \
    SPECIALIZED((id) + 1, uint, name##_high, 0) \
    INLINE Real name() { return packDouble2x32(uvec2(name##_low, name##_high)); }
#else
#define Real float
#define Real4 vec4
#define SPECIALIZED_REAL(id, name)             \
    SPECIALIZED(id, float, name##_value, 0.0f) \
    INLINE Real name() { return name##_value; }
#endif
#endif
