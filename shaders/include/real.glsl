// The floating-point type of a kernel. Each kernel is built twice: for float32, and with VKRNN_FLOAT64 for float64.
#ifndef VKRNN_REAL_GLSL
#define VKRNN_REAL_GLSL
#ifdef VKRNN_FLOAT64
#define Real double
#define Real4 dvec4
#else
#define Real float
#define Real4 vec4
#endif
#endif
