// A matrix as panels, for llvmpipe: see broadcast.glsl, and pack.comp for those parts that are no whole runs and panels.
// A workgroup copies a run of rows of a panel, or of several that lie side by side in the source.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "abi.h"

layout(local_size_x_id = kPackLanes) in;
layout(constant_id = kPackLanes) const uint lanes = 8;
layout(constant_id = kPackVectors) const uint vectors = 2;
layout(constant_id = kPackPanels) const uint panels = 1;
layout(constant_id = kPackContiguous) const uint contiguous = 0;
layout(push_constant, std430) uniform Push { PackRunsPush p; } push;
#include "broadcast.glsl"

const uint run_rows = kPackRows / (vectors * panels);

void main() {
    uint xy = UNIFORM(gl_WorkGroupID.x) + kBroadcastTable * UNIFORM(gl_WorkGroupID.y), z = UNIFORM(gl_WorkGroupID.z);
    Address from = push.p.in_ + (xy * push.p.in_xy + z * push.p.in_z);
    WindowPlace to = WindowPlace(push.p.out_) + xy * push.p.out_xy + z * push.p.out_z;
    [[unroll]] for (uint row = 0; row < run_rows; ++row)
        [[unroll]] for (uint v = 0; v < vectors * panels; ++v) {
            Address start = from + row * push.p.in_row;
            float found = contiguous != 0 ? load_lanes(start + v * lanes * 4)
                                          : load_strided(start + v * lanes * push.p.in_column, push.p.in_column);
            STORE_TO_WINDOW(window0, to + row * push.p.out_row + v / vectors * push.p.out_panel + v % vectors * lanes * 4, found)
        }
}
