// Converts between float32 and a 16-bit type. It loads and stores whole 32-bit words, so that the device needs no
// 16-bit features.
#include "common/sixteen_bits.glsl"
#include "portable/portable_abi.h"

WORKGROUP_SIZE(kElementwiseGroup)
SPECIALIZED(kConvertBfloat, uint, bfloat, 0)
SPECIALIZED(kConvertNarrow, uint, narrows, 0)
PUSH_CONSTANTS(ConvertPush, p)

REFERENCE(Words, uint, value, 4)
REFERENCE(Floats, float, value, 4)
REFERENCE(Vectors, uvec4, value, 16)

INLINE float widened(uint bits) { return widen(bfloat != 0, bits); }
INLINE uint narrowed_pair(float first, float second) {
    return narrow(bfloat != 0, first) | narrow(bfloat != 0, second) << 16;
}

void main() {
    uint at = (gl_WorkGroupID.y * kGroupsInX + gl_WorkGroupID.x) * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    uint first = at * kConvertEach;
    Address words = (narrows != 0 ? p.out_ : p.in_) + Address(first) * 2;
    Address floats = (narrows != 0 ? p.in_ : p.out_) + Address(first) * 4;
    if (first + kConvertEach <= p.count && (words | floats) % 16 == 0) {
        if (narrows != 0) {
            vec4 low = uintBitsToFloat(Vectors(floats).value), high = uintBitsToFloat(Vectors(floats + 16).value);
            Vectors(words).value = uvec4(narrowed_pair(low.x, low.y), narrowed_pair(low.z, low.w),
                                         narrowed_pair(high.x, high.y), narrowed_pair(high.z, high.w));
        } else {
            uvec4 pairs = Vectors(words).value;
            UNROLL for (uint i = 0; i < 2; ++i) {
                uint one = pairs[2 * i], other = pairs[2 * i + 1];
                Vectors(floats + i * 16).value = floatBitsToUint(
                    vec4(widened(one & 0xffffu), widened(one >> 16), widened(other & 0xffffu), widened(other >> 16)));
            }
        }
        return;
    }
    for (uint i = 0; i < kConvertEach && first + i < p.count; i += 2) {
        Words word = Words(words + i * 2);
        Address pair = floats + i * 4;
        bool second = first + i + 1 < p.count;
        if (narrows != 0) {
            word.value = narrowed_pair(Floats(pair).value, second ? Floats(pair + 4).value : 0.0f);
        } else {
            uint both = word.value;
            Floats(pair).value = widened(both & 0xffffu);
            if (second) Floats(pair + 4).value = widened(both >> 16);
        }
    }
}
