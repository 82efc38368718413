// Makes the factors of resets from bytes: 0 where one is not 0, else 1. It loads whole 32-bit words, so that the device
// needs no 8-bit features. A word that begins before the first byte, or ends after the last one, is in their page.
#include "common/memory.glsl"
#include "portable/portable_abi.h"

WORKGROUP_SIZE(kElementwiseGroup)
PUSH_CONSTANTS(ConvertPush, p)

READONLY_REFERENCE(Words, uint, value, 4)

void main() {
    uint at = linear_group() * gl_WorkGroupSize.x + gl_LocalInvocationID.x;
    if (at >= p.count) return;
    Address byte = p.in_ + Address(at);
    uint word = Words(byte & ~Address(3)).value;
    store(p.out_, Stride(at), (word >> 8 * uint(byte & Address(3)) & 0xffu) != 0 ? 0.0f : 1.0f);
}
