// Computes the absmax of a buffer, its largest finite magnitude: see AbsmaxPush.
#include "common/memory.glsl"
#include "matrices/units.glsl"

WORKGROUP_SIZE(kAbsmaxGroup)
PUSH_CONSTANTS(AbsmaxPush, p)

SHARED(uint, all)

INLINE uint magnitude(uint bits) {
    bits &= 0x7fffffffu;
    return bits < 0x7f800000u ? bits : 0;
}

// Returns true if a number belongs to a step past the end of its batch row.
INLINE bool past(uint at) {
    uint row = at / p.row;
    return p.first + row / p.N >= Words(p.lengths + Address(row % p.N) * 4).value;
}

INLINE uint magnitude_at(uint at, uint bits) { return p.row != 0 && past(at) ? 0 : magnitude(bits); }

void main() {
    uint group = gl_WorkGroupID.y * kGroupsInX + gl_WorkGroupID.x;
    if (gl_LocalInvocationID.x == 0) all = 0;
    barrier();
    uint mine = 0;
    UNROLL for (uint i = 0; i < kAbsmaxEach; i += 4) {
        uint first = group * (kAbsmaxGroup * kAbsmaxEach) + (i / 4 * kAbsmaxGroup + gl_LocalInvocationID.x) * 4;
        if (first + 4 <= p.count) {
            uvec4 bits = floatBitsToUint(load4_tensor(0, p.in_, first));
            UNROLL for (uint c = 0; c < 4; ++c) mine = max(mine, magnitude_at(first + c, bits[c]));
        } else {
            for (uint at = first; at < p.count; ++at)
                mine = max(mine, magnitude_at(at, floatBitsToUint(load_tensor(0, p.in_, at))));
        }
    }
    atomicMax(all, mine);
    barrier();
    if (gl_LocalInvocationID.x == 0) atomicMax(Words(p.out_).value, all);
}
