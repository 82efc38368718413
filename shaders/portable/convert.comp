// Converts between float32 and a 16-bit type. It loads and stores whole 32-bit words, so that the device needs no
// 16-bit features. It rounds to nearest even with integer operations, so that every device gives the same result.
#include "common/language.glsl"
#include "portable/portable_abi.h"

WORKGROUP_SIZE(kElementwiseGroup)
SPECIALIZED(kConvertBfloat, uint, bfloat, 0)
SPECIALIZED(kConvertNarrow, uint, narrow, 0)
PUSH_CONSTANTS(ConvertPush, p)

REFERENCE(Words, uint, value, 4)
REFERENCE(Floats, float, value, 4)
REFERENCE(Vectors, uvec4, value, 16)

INLINE float widen(uint bits) {
    if (bfloat != 0) return uintBitsToFloat(bits << 16);
    uint sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31u, mantissa = bits & 0x3ffu;
    if (exponent == 0) return uintBitsToFloat(floatBitsToUint(float(mantissa) * 5.9604644775390625e-8f) | sign);
    if (exponent == 31) return uintBitsToFloat(sign | 0x7f800000u | mantissa << 13);
    return uintBitsToFloat(sign | (exponent + 112u) << 23 | mantissa << 13);
}

INLINE uint narrowed(float value) {
    uint bits = floatBitsToUint(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    bool nan = magnitude > 0x7f800000u;
    if (bfloat != 0) return nan ? sign | 0x7fc0u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    if (nan) return sign | 0x7e00u;
    if (magnitude >= 0x47800000u) return sign | 0x7c00u;
    if (magnitude >= 0x38800000u) return sign | (magnitude + 0xfffu + (magnitude >> 13 & 1u) - 0x38000000u) >> 13;
    // Subnormal results: adding 1/2 rounds to a multiple of 2^-24, their unit.
    return sign | (floatBitsToUint(uintBitsToFloat(magnitude) + 0.5f) - 0x3f000000u);
}

INLINE uint narrowed_pair(float first, float second) { return narrowed(first) | narrowed(second) << 16; }

void main() {
    uint at = (gl_WorkGroupID.y * kGroupsInX + gl_WorkGroupID.x) * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    uint first = at * kConvertEach;
    Address words = (narrow != 0 ? p.out_ : p.in_) + Address(first) * 2;
    Address floats = (narrow != 0 ? p.in_ : p.out_) + Address(first) * 4;
    if (first + kConvertEach <= p.count && (words | floats) % 16 == 0) {
        if (narrow != 0) {
            vec4 low = uintBitsToFloat(Vectors(floats).value), high = uintBitsToFloat(Vectors(floats + 16).value);
            Vectors(words).value = uvec4(narrowed_pair(low.x, low.y), narrowed_pair(low.z, low.w),
                                         narrowed_pair(high.x, high.y), narrowed_pair(high.z, high.w));
        } else {
            uvec4 pairs = Vectors(words).value;
            UNROLL for (uint i = 0; i < 2; ++i) {
                uint one = pairs[2 * i], other = pairs[2 * i + 1];
                Vectors(floats + i * 16).value = floatBitsToUint(
                    vec4(widen(one & 0xffffu), widen(one >> 16), widen(other & 0xffffu), widen(other >> 16)));
            }
        }
        return;
    }
    for (uint i = 0; i < kConvertEach && first + i < p.count; i += 2) {
        Words word = Words(words + i * 2);
        Address pair = floats + i * 4;
        bool second = first + i + 1 < p.count;
        if (narrow != 0) {
            word.value = narrowed_pair(Floats(pair).value, second ? Floats(pair + 4).value : 0.0f);
        } else {
            uint both = word.value;
            Floats(pair).value = widen(both & 0xffffu);
            if (second) Floats(pair + 4).value = widen(both >> 16);
        }
    }
}
