// Conversions between float32 and the 16-bit types. They round to nearest even with integer operations, so that every
// device gives the same result.
#ifndef VKRNN_SIXTEEN_BITS_GLSL
#define VKRNN_SIXTEEN_BITS_GLSL
#include "common/language.glsl"

// Returns the number with these bits: bfloat16 if `bfloat`, else float16.
INLINE float widen(bool bfloat, uint bits) {
    if (bfloat) return uintBitsToFloat(bits << 16);
    uint sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31u, mantissa = bits & 0x3ffu;
    if (exponent == 0) return uintBitsToFloat(floatBitsToUint(float(mantissa) * 5.9604644775390625e-8f) | sign);
    if (exponent == 31) return uintBitsToFloat(sign | 0x7f800000u | mantissa << 13);
    return uintBitsToFloat(sign | (exponent + 112u) << 23 | mantissa << 13);
}

// Returns the bits of the nearest number of the type.
INLINE uint narrow(bool bfloat, float value) {
    uint bits = floatBitsToUint(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    bool nan = magnitude > 0x7f800000u;
    if (bfloat) return nan ? sign | 0x7fc0u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    if (nan) return sign | 0x7e00u;
    if (magnitude >= 0x47800000u) return sign | 0x7c00u;
    if (magnitude >= 0x38800000u) return sign | (magnitude + 0xfffu + (magnitude >> 13 & 1u) - 0x38000000u) >> 13;
    // Subnormal results: adding 1/2 rounds to a multiple of 2^-24, their unit.
    return sign | (floatBitsToUint(uintBitsToFloat(magnitude) + 0.5f) - 0x3f000000u);
}

#endif
