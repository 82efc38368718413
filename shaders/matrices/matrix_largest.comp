// The largest finite magnitude of so many numbers: see LargestPush.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "matrices/units.glsl"

layout(local_size_x = kLargestGroup) in;
layout(push_constant, std430) uniform Push { LargestPush p; };

shared uint all;

uint magnitude(uint bits) {
    bits &= 0x7fffffffu;
    return bits < 0x7f800000u ? bits : 0;
}

void main() {
    uint group = gl_WorkGroupID.y * kGroupsInX + gl_WorkGroupID.x;
    if (gl_LocalInvocationID.x == 0) all = 0;
    barrier();
    uint mine = 0;
    [[unroll]] for (uint i = 0; i < kLargestEach; i += 4) {
        uint first = group * (kLargestGroup * kLargestEach) + (i / 4 * kLargestGroup + gl_LocalInvocationID.x) * 4;
        if (first + 4 <= p.count) {
            uvec4 four = Vectors(p.in_ + Address(first) * 4).value;
            mine = max(mine, max(max(magnitude(four.x), magnitude(four.y)), max(magnitude(four.z), magnitude(four.w))));
        } else {
            for (uint at = first; at < p.count; ++at) mine = max(mine, magnitude(Words(p.in_ + Address(at) * 4).value));
        }
    }
    atomicMax(all, mine);
    barrier();
    if (gl_LocalInvocationID.x == 0) atomicMax(Words(p.out_).value, all);
}
