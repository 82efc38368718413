// Matrix product for llvmpipe (see broadcast.glsl): C = C_in + A B. A workgroup forms a tile of `rows` x `panels` * 2
// vectors of C; its subgroups take a block of k each and leave their sums to each other (see broadcast_sums.glsl), and then
// add up and store a share of the tile each: stores are what costs most. The rows of A are broadcast; B, in panels two
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
layout(constant_id = kBroadcastAStride) const uint a_stride = 0;
layout(constant_id = kBroadcastInWindow) const uint in_window = 0;
layout(constant_id = kBroadcastBStride) const uint b_stride = 16;
layout(push_constant, std430) uniform Push { BroadcastGemmPush p; } push;
#define SUM_VECTORS (2 * panels)
#define SUM_BLOCK block()
uint block();
#include "broadcast_sums.glsl"

const uint width = 2 * lanes;
const uint a_width = lanes > rows ? lanes : rows;   // of a panel of A
const uint runs = rows * panels;   // of `width` elements each, of a tile
const uint powers = blocks >= 8 ? 8 : blocks >= 4 ? 4 : blocks >= 2 ? 2 : 1;
const uint stores = powers < runs ? powers : runs;   // subgroups that store
const uint surplus = blocks - stores;

uint block() { return blocks == 1 ? 0 : UNIFORM(gl_LocalInvocationID.z); }

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

Address a, b;
float load_b(uint k, uint v) { return load_lanes(b + Address(v / 2 * push.p.panel) + (k * b_stride + v % 2 * lanes) * 4); }
vec4 even, odd;   // steps of k of four rows of A
vec2 load_a(uint k, uint r) {
    vec2 found;
    if (a_stride != 0) {
        Address at = a + (k * a_stride + r) * 4;
        if (r % 4 == 0) {
            even = FourConstants(at).value;
            odd = FourConstants(at + a_stride * 4).value;
        }
        found = vec2(even[r % 4], odd[r % 4]);
    } else {
        found = load_two(a + Address(r * push.p.lda * 4) + k * 4);
    }
    return found;
}

void main() {
    uint tile = UNIFORM(gl_WorkGroupID.x), group = UNIFORM(gl_WorkGroupID.y), z = UNIFORM(gl_WorkGroupID.z);
    uint k_first = block() * depth;
    // What a dispatch spans is less than 4 GiB, and sums in 32 bits take a fraction of the time.
    uint row_of_tile = tile * rows;
    uint step = uint(max(push.p.step + push.p.lag, 0));
    uint a_at = a_stride != 0 ? row_of_tile / a_width * a_width * push.p.lda + row_of_tile % a_width + k_first * a_stride
                              : row_of_tile * push.p.lda + k_first;
    a = push.p.a + (push.p.a_first + step * push.p.a_step + z * push.p.a_z + a_at * 4);
    b = push.p.b + (group * panels * push.p.panel + z * push.p.b_z + k_first * b_stride * 4);
#ifdef VKRNN_LOOPS
    float before[2 * runs];
    [[unroll]] for (uint i = 0; i < 2 * runs; ++i) before[i] = load_lanes(c_before(i / 2) + i % 2 * lanes * 4);
    form_sums(0.0);   // sums begin with zero: long ones keep their precision by that
    [[unroll]] for (uint run = 0; run < runs; ++run)
        store_run(run, before[2 * run] + kept_sums[2 * run], before[2 * run + 1] + kept_sums[2 * run + 1]);
#else
    form_sums(0.0);
    // The surplus subgroups, the first ones, store C as it was: the driver runs them in their order.
    uint store = max(block(), surplus) - surplus;
    [[unroll]] for (uint i = 0; i < runs / stores; ++i) {
        uint run = store * (runs / stores) + i;
        Address start = c_before(run);
        float low = load_lanes(start), high = load_lanes(start + lanes * 4);
        [[unroll]] for (uint other = 0; other < blocks; ++other) {
            float low_part = load_sum(other, 2 * run), high_part = load_sum(other, 2 * run + 1);
            low += block() < surplus ? 0.0 : low_part;
            high += block() < surplus ? 0.0 : high_part;
        }
        store_run(run, low, high);
    }
#endif
}
