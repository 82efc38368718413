// Matrix product for llvmpipe (see broadcast.glsl): C = C_in + A B, one block of k, which is unrolled. A subgroup forms
// `rows` x 2 vectors of C; the rows of A are broadcast and B, packed in panels of that width, is loaded by vectors.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "abi.h"

layout(local_size_x_id = kBroadcastLanes, local_size_z_id = kBroadcastPanels) in;
layout(constant_id = kBroadcastLanes) const uint lanes = 8;
layout(constant_id = kBroadcastPanels) const uint panels = 1;
layout(constant_id = kBroadcastRows) const uint rows = 8;
layout(constant_id = kBroadcastDepth) const uint depth = 64;
layout(constant_id = kBroadcastAColumns) const uint a_columns = 0;
#include "broadcast.glsl"
layout(push_constant, std430) uniform Push { BroadcastGemmPush p; } push;

const uint kRun = 8;   // loops are nested because the driver does not unroll long ones

void main() {
    uint panel = UNIFORM(gl_WorkGroupID.x) * panels + UNIFORM(gl_LocalInvocationID.z);
    uint tile = UNIFORM(gl_WorkGroupID.y), z = UNIFORM(gl_WorkGroupID.z);
    Address a = push.p.a + Address(max(push.p.step + push.p.lag, 0) * push.p.a_step) + z * Address(push.p.a_z) +
                Address(tile * (a_columns != 0 ? rows * 4 : rows * push.p.lda * 4));
    Address b = push.p.b + panel * Address(push.p.panel) + z * Address(push.p.b_z);
    Address start = push.p.c_in + z * Address(push.p.c_in_z) + Address(tile * rows * push.p.ld_in * 4) +
                    Address(panel * push.p.c_in_panel);
    float sum[2 * rows];
    [[unroll]] for (uint i = 0; i < 2 * rows; ++i)
        sum[i] = load_lanes(start + Address(i / 2 * push.p.ld_in * 4) + i % 2 * lanes * 4);
    [[unroll]] for (uint run = 0; run < depth / kRun; ++run)
        [[unroll]] for (uint i = 0; i < kRun; ++i) {
            uint k = run * kRun + i;
            float low = load_lanes(b + 2 * k * lanes * 4), high = load_lanes(b + (2 * k + 1) * lanes * 4);
            [[unroll]] for (uint r = 0; r < rows; ++r) {
                float one = load_uniform(a_columns != 0 ? a + Address(k * push.p.lda * 4) + r * 4
                                                        : a + Address(r * push.p.lda * 4) + k * 4);
                sum[2 * r] += one * low;
                sum[2 * r + 1] += one * high;
            }
        }
    Address c = push.p.c + z * Address(push.p.c_z) + Address(tile * rows * push.p.ldc * 4) + panel * (2 * lanes * 4);
    [[unroll]] for (uint r = 0; r < rows; ++r) store_lanes(c + Address(r * push.p.ldc * 4), sum[2 * r], sum[2 * r + 1]);
}
