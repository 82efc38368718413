// A matrix as panels, for llvmpipe: see broadcast.glsl, and pack.comp for those parts that are no whole runs and panels.
// A workgroup copies a run of rows of a panel.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "abi.h"

layout(local_size_x_id = kPackLanes) in;
layout(constant_id = kPackLanes) const uint lanes = 8;
layout(constant_id = kPackVectors) const uint vectors = 2;
#include "broadcast.glsl"
layout(push_constant, std430) uniform Push { PackRunsPush p; } push;

const uint run_rows = kPackRows / vectors;

void main() {
    uint run = UNIFORM(gl_WorkGroupID.x), panel = UNIFORM(gl_WorkGroupID.y) + kBroadcastTable * UNIFORM(gl_WorkGroupID.z);
    Address from = push.p.in_ + (run * run_rows * push.p.in_row + panel * vectors * lanes * push.p.in_column);
    uint to = uint(push.p.out_) + run * run_rows * push.p.out_row + panel * push.p.out_panel;
    [[unroll]] for (uint row = 0; row < run_rows; ++row)
        [[unroll]] for (uint v = 0; v < vectors; ++v) {
            Address at = from + row * push.p.in_row + v * lanes * push.p.in_column;
            float found = load_uniform(at);
            [[unroll]] for (uint i = 1; i < lanes; ++i) {
                float one = load_uniform(at + i * push.p.in_column);
                found = gl_SubgroupInvocationID == i ? one : found;
            }
            STORE_TO_WINDOW(window0, to + row * push.p.out_row + v * lanes * 4, found)
        }
}
