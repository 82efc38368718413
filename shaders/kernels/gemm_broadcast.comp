// Matrix product for llvmpipe (see broadcast.glsl): C = C_in + A B. A workgroup forms a tile of `rows` x `panels` * 2
// vectors of C; its subgroups take a block of k each, which is unrolled, leave their sums in shared memory, and then add
// up and store a share of the tile each: stores are what costs most. The rows of A are broadcast; B, packed in panels two
// vectors wide, is loaded by vectors.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "abi.h"

layout(local_size_x_id = kBroadcastLanes, local_size_z_id = kBroadcastBlocks) in;
layout(constant_id = kBroadcastLanes) const uint lanes = 8;
layout(constant_id = kBroadcastBlocks) const uint blocks = 1;
layout(constant_id = kBroadcastRows) const uint rows = 8;
layout(constant_id = kBroadcastPanels) const uint panels = 1;
layout(constant_id = kBroadcastDepth) const uint depth = 64;
layout(constant_id = kBroadcastAColumns) const uint a_columns = 0;
layout(constant_id = kBroadcastInWindow) const uint in_window = 0;
#include "broadcast.glsl"
layout(push_constant, std430) uniform Push { BroadcastGemmPush p; } push;

const uint kRun = 8;   // loops are nested because the driver does not unroll long ones
const uint kIndexMask = 0x3fff;
const uint width = 2 * lanes;
const uint runs = rows * panels;   // of `width` elements each, of a tile
const uint kPad = runs * width;   // see below
shared float sums[kPad + blocks * runs * width];

void main() {
    uint block = UNIFORM(gl_LocalInvocationID.z), group = UNIFORM(gl_WorkGroupID.x);
    uint tile = UNIFORM(gl_WorkGroupID.y), z = UNIFORM(gl_WorkGroupID.z);
    uint k_first = block * depth;
    Address a = push.p.a + Address(max(push.p.step + push.p.lag, 0) * push.p.a_step) + z * Address(push.p.a_z) +
                Address((tile * rows * (a_columns != 0 ? 1 : push.p.lda) + k_first * (a_columns != 0 ? push.p.lda : 1)) * 4);
    Address b = push.p.b + group * panels * Address(push.p.panel) + z * Address(push.p.b_z) + k_first * width * 4;
    precise float sum[2 * runs];
    [[unroll]] for (uint i = 0; i < 2 * runs; ++i) sum[i] = 0.0;
    // Two products are added before they join the sum, precisely so: as much work, and half the rounding error.
    [[unroll]] for (uint run = 0; run < depth / kRun; ++run)
        [[unroll]] for (uint i = 0; i < kRun; i += 2) {
            uint k = run * kRun + i;
            float w[2][2 * panels];
            [[unroll]] for (uint v = 0; v < 4 * panels; ++v)
                w[v / (2 * panels)][v % (2 * panels)] = load_lanes(
                    b + Address(v / 2 % panels * push.p.panel) + ((k + v / (2 * panels)) * width + v % 2 * lanes) * 4);
            [[unroll]] for (uint r = 0; r < rows; ++r) {
                Address at = a_columns != 0 ? a + Address(k * push.p.lda * 4) + r * 4
                                            : a + Address(r * push.p.lda * 4) + k * 4;
                float one = load_uniform(at);
                float two = load_uniform(a_columns != 0 ? a + Address((k + 1) * push.p.lda * 4) + r * 4 : at + 4);
                [[unroll]] for (uint v = 0; v < 2 * panels; ++v) sum[r * 2 * panels + v] += one * w[0][v] + two * w[1][v];
            }
        }
    // Masked, so that the compiler sees that nothing overflows and makes vectors of what follows.
    uint own = block * runs * width & kIndexMask;
    [[unroll]] for (uint i = 0; i < 2 * runs; ++i)
        [[unroll]] for (uint l = 0; l < lanes; ++l) sums[own + (kPad + i * lanes + l)] = subgroupShuffle(sum[i], l);
    barrier();

    [[unroll]] for (uint i = 0; i < runs / blocks; ++i) {
        uint run = block * (runs / blocks) + i, row = tile * rows + run / panels, panel = group * panels + run % panels;
        Address start = push.p.c_in + z * Address(push.p.c_in_z) + Address(row * push.p.ld_in * 4) +
                        Address(panel * push.p.c_in_panel);
        float low = load_lanes(start), high = load_lanes(start + lanes * 4);
        uint at = run * width & kIndexMask;
        [[unroll]] for (uint other = 0; other < blocks; ++other) {
            float low_part = 0.0, high_part = 0.0;
            [[unroll]] for (uint l = 0; l < lanes; ++l) {
                float low_one = sums[at + (kPad + other * runs * width + l)], high_one = sums[at + (kPad + other * runs * width + lanes + l)];
                low_part = gl_SubgroupInvocationID == l ? low_one : low_part;
                high_part = gl_SubgroupInvocationID == l ? high_one : high_part;
            }
            low += low_part;
            high += high_part;
        }
        Address end = push.p.c + z * Address(push.p.c_z) + Address(row * push.p.ldc * 4) + panel * width * 4;
        if (in_window != 0) {
            STORE_TO_WINDOW(window0, end, low)
            STORE_TO_WINDOW(window0, end + lanes * 4, high)
        } else {
            store_lanes(end, end + lanes * 4, low, high);
        }
    }
}
