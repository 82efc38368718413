// The sums of products of one subgroup (see broadcast.glsl): of `rows` rows of A, broadcast, with SUM_VECTORS vectors of
// B, over one block of `depth` steps of k. It leaves them in shared memory, where all subgroups of the workgroup, `blocks`
// of them, add them up; one that is alone keeps them. Whoever includes this defines before it
//   SUM_VECTORS, SUM_BLOCK: the number of the subgroup's block
// and after it
//   float load_b(uint k, uint v), vector v of step k, and
//   vec2 load_a(uint k, uint r), steps k and k + 1 of row r.
#ifndef VKRNN_BROADCAST_SUMS_GLSL
#define VKRNN_BROADCAST_SUMS_GLSL
#extension GL_EXT_null_initializer : require
#include "broadcast.glsl"

#ifdef VKRNN_LOOPS
const uint kRun = 16;   // of k, unrolled in a loop that stays
#else
const uint kRun = 8;    // loops over k are nested because the driver does not unroll long ones
#endif
const uint kIndexMask = 0x3fff;
const uint sum_count = rows * SUM_VECTORS;
const uint block_sums = sum_count * lanes;
const uint kPad = block_sums;   // so that an index is a sum and not a disjunction, of which the compiler makes no vectors
shared float shared_sums[depth == 0 || kAlone ? 1 : kPad + blocks * block_sums];
float kept_sums[sum_count];     // where it is alone

float load_b(uint k, uint v);
vec2 load_a(uint k, uint r);

// A look-up, of a constant too, is a branch to the compiler: a seam. It takes quadratic time over the loads between two of
// them, so the runs of k have some. Each number is a seam once.
const uint kLastSeam = kBroadcastTable - 1;   // after the runs
uint looked_up = 0;   // stays 0, but the compiler does not know
void seam(uint number) { looked_up += UNIFORM(number) - number; }

// Between two seams of so many runs of so many scalar loads each.
uint runs_of_seam(uint runs, uint loads) {
    const uint kSeamLoads = 1024;
    return max(kSeamLoads / loads, (runs + kLastSeam - 1) / kLastSeam);
}

// `first` begins the first sum: 0, but the compiler need not know.
void form_sums(float first) {
    precise float sum[sum_count] = {};
    sum[0] = first;
    uint seam_runs = runs_of_seam(depth / kRun, kRun * (SUM_VECTORS * lanes + rows));
    // Two products are added before they join the sum, precisely so: as much work, and half the rounding error.
    UNROLLED for (uint run = 0; run < depth / kRun; ++run)
        [[unroll]] for (uint i = 0; i < kRun; i += 2) {
            uint k = run * kRun + i;
            seam(run / seam_runs);
            float w[2 * SUM_VECTORS];   // of two steps of k
            [[unroll]] for (uint v = 0; v < 2 * SUM_VECTORS; ++v) w[v] = load_b(k + v / SUM_VECTORS, v % SUM_VECTORS);
            [[unroll]] for (uint r = 0; r < rows; ++r) {
                vec2 x = load_a(k, r);
                [[unroll]] for (uint v = 0; v < SUM_VECTORS; ++v)
                    sum[r * SUM_VECTORS + v] += x.x * w[v] + x.y * w[SUM_VECTORS + v];
            }
        }
    if (kAlone) {
        [[unroll]] for (uint i = 0; i < sum_count; ++i) kept_sums[i] = sum[i];
    } else {
        // Masked, so that the compiler sees that nothing overflows and makes vectors of what follows.
        uint own = SUM_BLOCK * block_sums & kIndexMask;
        [[unroll]] for (uint i = 0; i < sum_count; ++i)
            [[unroll]] for (uint l = 0; l < lanes; ++l)
                shared_sums[own + (kPad + i * lanes + l)] = subgroupShuffle(sum[i], l);
        // So that what comes before this is not the last block, to which the compiler delays all that is used there alone.
        seam(kLastSeam);
        shared_sums[own + (kPad + looked_up)] = subgroupShuffle(sum[0], 0);
        if (blocks > 1) barrier();
        else subgroupMemoryBarrierShared();
    }
}

// What the subgroup of `block` left of the sum `index`.
float load_sum(uint block, uint index) {
    uint at = index * lanes & kIndexMask;
    float found = kAlone ? kept_sums[index] : 0.0;
    [[unroll]] for (uint l = 0; l < lanes && !kAlone; ++l) {
        float one = shared_sums[at + (kPad + block * block_sums + l)];
        found = gl_SubgroupInvocationID == l ? one : found;
    }
    return found;
}

#endif
