// Matrix product for llvmpipe (see broadcast.glsl): C = C_in + A B. A workgroup forms a tile of `rows` x `panels` * 2
// vectors of C; its subgroups take a block of k each, leave their sums in shared memory, and then add up and store a share
// of the tile each: stores are what costs most. Where a workgroup is one subgroup, that keeps its sums. The rows of A are broadcast; B, packed in panels two
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
layout(constant_id = kBroadcastAPanels) const uint a_panels = 0;
layout(constant_id = kBroadcastInWindow) const uint in_window = 0;
layout(push_constant, std430) uniform Push { BroadcastGemmPush p; } push;
#include "broadcast.glsl"

const uint kIndexMask = 0x3fff;
const uint width = 2 * lanes;
const uint a_width = lanes > rows ? lanes : rows;   // of a panel of A
const uint runs = rows * panels;   // of `width` elements each, of a tile
const uint powers = blocks >= 8 ? 8 : blocks >= 4 ? 4 : blocks >= 2 ? 2 : 1;
const uint stores = powers < runs ? powers : runs;   // subgroups that store
const uint surplus = blocks - stores;
const uint kPad = runs * width;   // see below
shared float sums[kAlone ? 1 : kPad + blocks * runs * width];

// Of row and panel `run` of the tile, of workgroup `z`.
uint row_of(uint run) { return UNIFORM(gl_WorkGroupID.x) * rows + run / panels; }
uint panel_of(uint run) { return UNIFORM(gl_WorkGroupID.y) * panels + run % panels; }
Address c_before(uint run) {
    uint z = UNIFORM(gl_WorkGroupID.z);
    return push.p.c_in + (z * push.p.c_in_z + row_of(run) * push.p.ld_in * 4 + panel_of(run) * push.p.c_in_panel);
}
void store_run(uint run, float low, float high) {
    uint end = UNIFORM(gl_WorkGroupID.z) * push.p.c_z + (row_of(run) * push.p.ldc + panel_of(run) * width) * 4;
    if (in_window != 0) {
        STORE_TO_WINDOW(product_window, WindowPlace(push.p.c) + end, low)
        STORE_TO_WINDOW(product_window, WindowPlace(push.p.c) + end + lanes * 4, high)
    } else {
        store_lanes(push.p.c + end, push.p.c + end + lanes * 4, low, high);
    }
}

void main() {
    uint block = blocks == 1 ? 0 : UNIFORM(gl_LocalInvocationID.z), tile = UNIFORM(gl_WorkGroupID.x);
    uint group = UNIFORM(gl_WorkGroupID.y), z = UNIFORM(gl_WorkGroupID.z);
    uint k_first = block * depth;
    // What a dispatch spans is less than 4 GiB, and sums in 32 bits take a fraction of the time.
    uint row_of_tile = tile * rows;
    uint step = uint(max(push.p.step + push.p.lag, 0));
    uint a_at = a_panels != 0 ? row_of_tile / a_width * a_width * push.p.lda + row_of_tile % a_width + k_first * a_width
                              : row_of_tile * push.p.lda + k_first;
    Address a = push.p.a + (push.p.a_first + step * push.p.a_step + z * push.p.a_z + a_at * 4);
    Address b = push.p.b + (group * panels * push.p.panel + z * push.p.b_z + k_first * width * 4);
    // Sums begin with zero: long ones keep their precision by that.
    precise float sum[2 * runs];
    float before[2 * runs];
    [[unroll]] for (uint i = 0; i < 2 * runs; ++i) {
        sum[i] = 0.0;
        before[i] = kAlone ? load_lanes(c_before(i / 2) + i % 2 * lanes * 4) : 0.0;
    }
    uint seam_runs = runs_of_seam(depth / kRun, kRun * (panels * width + rows));
    // Two products are added before they join the sum, precisely so: as much work, and half the rounding error.
    UNROLLED for (uint run = 0; run < depth / kRun; ++run)
        [[unroll]] for (uint i = 0; i < kRun; i += 2) {
            uint k = run * kRun + i;
            seam(run / seam_runs);
            float w[2][2 * panels];
            [[unroll]] for (uint v = 0; v < 4 * panels; ++v)
                w[v / (2 * panels)][v % (2 * panels)] = load_lanes(
                    b + Address(v / 2 % panels * push.p.panel) + ((k + v / (2 * panels)) * width + v % 2 * lanes) * 4);
            vec2 x[rows];   // of A, two steps of k of each row
            if (a_panels != 0) {
                [[unroll]] for (uint r = 0; r < rows; r += 4) {
                    Address at = a + (k * a_width + r) * 4;
                    vec4 even = FourConstants(at).value, odd = FourConstants(at + a_width * 4).value;
                    [[unroll]] for (uint i = 0; i < 4; ++i) x[r + i] = vec2(even[i], odd[i]);
                }
            } else {
                [[unroll]] for (uint r = 0; r < rows; ++r) x[r] = load_two(a + Address(r * push.p.lda * 4) + k * 4);
            }
            [[unroll]] for (uint r = 0; r < rows; ++r)
                [[unroll]] for (uint v = 0; v < 2 * panels; ++v)
                    sum[r * 2 * panels + v] += x[r].x * w[0][v] + x[r].y * w[1][v];
        }
    if (kAlone) {
        [[unroll]] for (uint run = 0; run < runs; ++run) store_run(run, before[2 * run] + sum[2 * run], before[2 * run + 1] + sum[2 * run + 1]);
    } else {
        // Masked, so that the compiler sees that nothing overflows and makes vectors of what follows.
        uint own = block * runs * width & kIndexMask;
        [[unroll]] for (uint i = 0; i < 2 * runs; ++i)
            [[unroll]] for (uint l = 0; l < lanes; ++l) sums[own + (kPad + i * lanes + l)] = subgroupShuffle(sum[i], l);
        // So that what comes before this is not the last block, to which the compiler delays all that is used there alone.
        seam(kLastSeam);
        sums[own + (kPad + looked_up)] = subgroupShuffle(sum[0], 0);
        barrier();

        // The surplus subgroups, the first ones, store C as it was: the driver runs them in their order.
        uint store = max(block, surplus) - surplus;
        [[unroll]] for (uint i = 0; i < runs / stores; ++i) {
            uint run = store * (runs / stores) + i;
            Address start = c_before(run);
            float low = load_lanes(start), high = load_lanes(start + lanes * 4);
            uint at = run * width & kIndexMask;
            [[unroll]] for (uint other = 0; other < blocks; ++other) {
                float low_part = 0.0, high_part = 0.0;
                [[unroll]] for (uint l = 0; l < lanes; ++l) {
                    float low_one = sums[at + (kPad + other * runs * width + l)], high_one = sums[at + (kPad + other * runs * width + lanes + l)];
                    low_part = gl_SubgroupInvocationID == l ? low_one : low_part;
                    high_part = gl_SubgroupInvocationID == l ? high_one : high_part;
                }
                low += block < surplus ? 0.0 : low_part;
                high += block < surplus ? 0.0 : high_part;
            }
            store_run(run, low, high);
        }
    }
}
