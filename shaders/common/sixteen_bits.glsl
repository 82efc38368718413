// Conversions between float32 and the 16-bit types. They round to nearest even with integer operations, so that every
// device gives the same result, and without branches, which would wait for each number on its own.
#ifndef VKRNN_SIXTEEN_BITS_GLSL
#define VKRNN_SIXTEEN_BITS_GLSL
#include "common/language.glsl"

// Returns the number with these bits: bfloat16 if `bfloat`, else float16.
INLINE float widen(bool bfloat, uint bits) {
    if (bfloat) return uintBitsToFloat(bits << 16);
    uint magnitude = bits & 0x7fffu, moved = magnitude << 13;
    uint subnormal = floatBitsToUint(float(magnitude) * 5.9604644775390625e-8f);   // a multiple of 2^-24
    uint normal = moved + (magnitude < 0x7c00u ? 0x38000000u : 0x70000000u);       // infinity and NaN keep their bits
    return uintBitsToFloat((magnitude < 0x400u ? subnormal : normal) | (bits & 0x8000u) << 16);
}

// Returns the bits of the nearest number of the type.
INLINE uint narrow(bool bfloat, float value) {
    uint bits = floatBitsToUint(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    bool nan = magnitude > 0x7f800000u;
    if (bfloat) return nan ? sign | 0x7fc0u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    // Subnormal results: adding 1/2 rounds to a multiple of 2^-24, their unit.
    uint subnormal = floatBitsToUint(uintBitsToFloat(magnitude) + 0.5f) - 0x3f000000u;
    uint normal = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - 0x38000000u) >> 13;
    uint nearest = magnitude < 0x38800000u ? subnormal : normal;
    return sign | (nan ? 0x7e00u : magnitude < 0x47800000u ? nearest : 0x7c00u);
}

#endif
