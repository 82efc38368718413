// Sums over runs of rows, for llvmpipe: see broadcast.glsl, and reduce.comp for what is not whole vectors and runs.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "abi.h"

layout(local_size_x_id = kSumLanes) in;
layout(constant_id = kSumLanes) const uint lanes = 8;
layout(push_constant, std430) uniform Push { SumRowsPush p; } push;
#include "broadcast.glsl"

const uint kChunk = 8;   // loops are nested because the driver does not unroll long ones

void main() {
    uint vector = UNIFORM(gl_WorkGroupID.x) + kBroadcastTable * UNIFORM(gl_WorkGroupID.y), run = UNIFORM(gl_WorkGroupID.z);
    Address from = push.p.in_ + (vector * lanes * 4 + run * push.p.in_run);
    precise float sum = 0.0;
    [[unroll]] for (uint chunk = 0; chunk < kSumRows / kChunk; ++chunk) {
        precise float part = 0.0;
        [[unroll]] for (uint i = 0; i < kChunk; ++i) part += load_lanes(from + (chunk * kChunk + i) * push.p.in_row);
        sum += part;
    }
    STORE_TO_WINDOW(window0, WindowPlace(push.p.out_) + vector * lanes * 4 + run * push.p.out_run, sum)
}
