// Between float32 and the 16-bit types, two elements an invocation: whole words, so that no 16-bit feature is needed.
// Rounds to nearest even, by bits, so that every device gives the same.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#include "abi.h"

layout(local_size_x = kElementwiseGroup) in;
layout(constant_id = kConvertBfloat) const uint bfloat = 0;
layout(constant_id = kConvertNarrow) const uint narrow = 0;
layout(push_constant, std430) uniform Push { ConvertPush p; };

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { uint value; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { float value; };

float widen(uint bits) {
    if (bfloat != 0) return uintBitsToFloat(bits << 16);
    uint sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31u, mantissa = bits & 0x3ffu;
    if (exponent == 0) return uintBitsToFloat(floatBitsToUint(float(mantissa) * 5.9604644775390625e-8) | sign);
    if (exponent == 31) return uintBitsToFloat(sign | 0x7f800000u | mantissa << 13);
    return uintBitsToFloat(sign | (exponent + 112u) << 23 | mantissa << 13);
}

uint narrowed(float value) {
    uint bits = floatBitsToUint(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    bool nan = magnitude > 0x7f800000u;
    if (bfloat != 0) return nan ? sign | 0x7fc0u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    if (nan) return sign | 0x7e00u;
    if (magnitude >= 0x47800000u) return sign | 0x7c00u;
    if (magnitude >= 0x38800000u) return sign | (magnitude + 0xfffu + (magnitude >> 13 & 1u) - 0x38000000u) >> 13;
    // A subnormal: adding 1/2 rounds to multiples of 2^-24, its unit.
    return sign | (floatBitsToUint(uintBitsToFloat(magnitude) + 0.5) - 0x3f000000u);
}

void main() {
    uint at = (gl_WorkGroupID.y * kGroupsInX + gl_WorkGroupID.x) * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    uint first = at * 2;
    if (first >= p.count) return;
    Words words = Words((narrow != 0 ? p.out_ : p.in_) + Address(at) * 4);
    Address floats = (narrow != 0 ? p.in_ : p.out_) + Address(first) * 4;
    bool second = first + 1 < p.count;
    if (narrow != 0) {
        uint high = second ? narrowed(Floats(floats + 4).value) : 0;
        words.value = narrowed(Floats(floats).value) | high << 16;
    } else {
        uint pair = words.value;
        Floats(floats).value = widen(pair & 0xffffu);
        if (second) Floats(floats + 4).value = widen(pair >> 16);
    }
}
