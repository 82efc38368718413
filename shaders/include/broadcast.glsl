// How shaders are written that llvmpipe compiles to vector code. It turns a load into one scalar load only where the
// address is made of constants and push constants and no loop, branch or return surrounds it; every other load, and every
// store, is a loop over the invocations of the subgroup. So these kernels are straight lines: everything is unrolled,
// workgroup numbers are read through a table of 0, 1, 2, ... in the push constants, loads are uniform, and a store moves
// eight bytes an invocation. The driver reads `gl_LocalInvocationID.z` that way too: a subgroup lies in one z, because the
// workgroup is one subgroup wide, but Vulkan does not promise that such an index works; the device's self-test proves it.
// Of loops that follow each other in a block the driver unrolls one in each round of its passes over the whole kernel, so
// few do, and the one over k, which makes a kernel long, comes to it last: a loop of many levels takes as many rounds.
// A kernel declares its push constants, with their table, before it includes this.
// With VKRNN_LOOPS, for releases that see by themselves what is uniform, loops over k stay, a workgroup is one subgroup,
// which stores as usual, and nothing goes beyond what Vulkan promises.
#ifndef VKRNN_BROADCAST_GLSL
#define VKRNN_BROADCAST_GLSL
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#include "memory.glsl"

layout(buffer_reference, std430, buffer_reference_align = 8) buffer Pair { uint64_t value; };

#ifdef VKRNN_LOOPS
#define UNIFORM(number) (number)
#define UNROLLED
#define LOADED readonly
const bool kAlone = true;   // the only subgroup of its workgroup: it keeps its sums
// The lane's number for use after that loop, made before it. Were it the same to the compiler as the one that is compared
// in the loop, it would pass the comparisons' results through memory.
uint late_lane = gl_SubgroupInvocationID + push.p.table[0];
#else
#define UNIFORM(number) push.p.table[number]
#define UNROLLED [[unroll]]
const bool kAlone = false;
// So that the driver does not compare each of these thousands of loads with all before it.
#define LOADED volatile readonly
#define late_lane gl_SubgroupInvocationID
#endif

layout(buffer_reference, std430, buffer_reference_align = 4) LOADED buffer Constant { float value; };
float load_uniform(Address at) { return Constant(at).value; }

// As many elements as there are lanes, `stride` bytes apart from a uniform address on. Of consecutive ones the compiler
// folds the selections into one vector load.
float load_strided(Address at, uint stride) {
    float found = load_uniform(at);
    [[unroll]] for (uint i = 1; i < lanes; ++i) {
        float one = load_uniform(at + i * stride);
        found = gl_SubgroupInvocationID == i ? one : found;
    }
    return found;
}

// The same of consecutive elements, several to a load, which compiles in less time.
layout(buffer_reference, scalar, buffer_reference_align = 4) LOADED buffer TwoConstants { vec2 value; };
layout(buffer_reference, scalar, buffer_reference_align = 4) LOADED buffer FourConstants { vec4 value; };
layout(buffer_reference, scalar, buffer_reference_align = 4) LOADED buffer Fours { vec4 four[4]; };   // or fewer
vec2 load_two(Address at) { return TwoConstants(at).value; }

// As many elements as there are lanes; the compiler folds it all into one vector load.
float load_lanes(Address at, uint lane) {
    float found = 0.0;
    [[unroll]] for (uint i = 0; i < lanes; i += 4) {
        vec4 four = Fours(at).four[i / 4];
        found = i == 0 ? four.x : lane == i ? four.x : found;
        found = lane == i + 1 ? four.y : found;
        found = lane == i + 2 ? four.z : found;
        found = lane == i + 3 ? four.w : found;
    }
    return found;
}
float load_lanes(Address at) { return load_lanes(at, gl_SubgroupInvocationID); }

#ifdef VKRNN_LOOPS
void store_lanes(Address at, float vector) { Scalar(at + late_lane * 4).value = vector; }
void store_lanes(Address at_low, Address at_high, float low, float high) {
    store_lanes(at_low, low);
    store_lanes(at_high, high);
}
#define WindowPlace Address
#define STORE_TO_WINDOW(window, place, vector) store_lanes(place, vector);
#else

// Where the driver stores what is uniform without a loop (see abi.h). Each component is a store with a check of its own,
// so they are as wide as they get.
layout(set = 0, binding = 0, std430) buffer Window0 { u64vec2 value[]; } window0;
layout(set = 0, binding = 1, std430) buffer Window1 { u64vec2 value[]; } window1;
layout(set = 0, binding = 2, std430) buffer Window2 { u64vec2 value[]; } window2;
layout(set = 0, binding = kProductWindow, std430) buffer ProductWindow { u64vec2 value[]; } product_window;
uint64_t pair_of_lanes(float vector, uint lane) {
    return packUint2x32(floatBitsToUint(vec2(subgroupShuffle(vector, lane), subgroupShuffle(vector, lane + 1))));
}
#define WindowPlace uint
#define STORE_FOUR_LANES(window, place, vector, lane)                                                             \
    window.value[place + lane / 4] = u64vec2(pair_of_lanes(vector, lane), pair_of_lanes(vector, lane + 2));
// Of 4, 8 or 16 lanes, without a loop (see above).
#define STORE_TO_WINDOW(window, bytes, vector)                                                                    \
    {                                                                                                             \
        uint first_place = uint((bytes) / kWindowBytes);                                                          \
        STORE_FOUR_LANES(window, first_place, vector, 0)                                                          \
        if (lanes > 4) STORE_FOUR_LANES(window, first_place, vector, 4)                                           \
        if (lanes > 8) {                                                                                          \
            STORE_FOUR_LANES(window, first_place, vector, 8)                                                      \
            STORE_FOUR_LANES(window, first_place, vector, 12)                                                     \
        }                                                                                                         \
    }

// Stores `low` to `lanes` consecutive elements, and `high` to as many.
void store_lanes(Address at_low, Address at_high, float low, float high) {
    uint even = 2 * gl_SubgroupInvocationID & (lanes - 1), odd = even + 1;
    bool first = gl_SubgroupInvocationID < lanes / 2;
    float low_even = subgroupShuffle(low, even), high_even = subgroupShuffle(high, even);
    float low_odd = subgroupShuffle(low, odd), high_odd = subgroupShuffle(high, odd);
    uvec2 pair = floatBitsToUint(vec2(first ? low_even : high_even, first ? low_odd : high_odd));
    Address at = (first ? at_low : at_high - lanes * 4) + gl_SubgroupInvocationID * 8;
    Pair(at).value = packUint2x32(pair);
}
#endif

#endif
