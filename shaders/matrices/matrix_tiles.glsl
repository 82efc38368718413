// Computes one tile of a step's product on matrix units. The subgroups of a workgroup divide the columns and k among
// themselves. Their sums are added up in shared memory.
// The operand is stored in regions, as in tiles/tiles.glsl, but in blocks. Its k consist of one run of whole blocks
// per slot, with a k for each unit. Rows past the last one have arbitrary contents; their sums are not used. Units past
// the last one are zeros.
#ifndef VKRNN_MATRIX_TILES_GLSL
#define VKRNN_MATRIX_TILES_GLSL
#include "common/step.glsl"
#include "tile_step/tile.glsl"
#include "matrices/multiply.glsl"

CONSTANT uint tile_rows = matrix_rows * side;
CONSTANT uint group_columns = matrix_columns * side;
CONSTANT uint tile_columns = group_columns * column_groups;
CONSTANT uint invocations = subgroup * column_groups * depth_groups;
CONSTANT uint row_vec4s = tile_columns / 4 + 2;   // per row of sums; two more keep pairs of numbers in other banks
// In a persistent loop, k blocks of weights may follow the sums.
SPECIALIZED(kSharedBlocks, uint, shared_blocks, 0)
CONSTANT uint first_weight = sum_slots * tile_rows * row_vec4s;
LAUNCH_SHARED_ARRAY(vec4, sums, [first_weight + shared_blocks * matrix_columns * right_parts * invocations])

INLINE uint invocation() { return gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID; }

// A barrier after which all invocations of the workgroup see each other's stores.
INLINE void workgroup_barrier() {
    controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
                   gl_SemanticsAcquireRelease | gl_SemanticsMakeAvailable | gl_SemanticsMakeVisible);
}

INLINE Address table_address(Params p) { return params_of(p).at[2 * kMatrixTable]; }
INLINE uint loop_absmax(Params p, uint which) {
    return Words(params_of(p).at[2 * kMatrixTable + 1] + Address(which) * 4).value;
}
INLINE uint at_least_1(uint bits) { return max(bits, floatBitsToUint(1.0f)); }

// Factors of the sums. Forward, sums are multiplied by weights_up and operand_up one after the other, because the
// product of the two may be too small for a float. Backward, the sums already include the scales of their k blocks and
// kTagRoom. There, weights_up includes 0.5 / kTagRoom, and tile_sum multiplies by the 2 that is missing.
float weights_up, operand_up;
float operand_down;   // factor of the elements of the operand before they are split

INLINE uint k_blocks(Params p) { return params_of(p).strides[kMatrixOperand].slot; }   // k blocks of the whole operand
INLINE uint run_blocks(Params p) { return (params_of(p).H + side - 1) / side; }      // k blocks of one slot

INLINE Address region_address(Params p, uint direction, uint region) {
    return own_address(p, kMatrixOperand, direction) + Address(region * step_stride(p, kMatrixOperand, direction)) * 4;
}

// In a persistent loop with tags, workgroups wait for each other's words by their tags. A step's words in a region have
// a different tag from the words that were there before.
SPECIALIZED(kTagged, uint, tagged, 0)
CONSTANT bool tagged_halves = tagged != 0 && left_parts == 1;
uint tag_stored = 0, tag_loaded = 0;
// Returns the tag of the words that step `step` uses in region step & 1.
INLINE uint tag_of(int step) { return uint(step) >> 1 & 1; }

INLINE void store_word(Address at, uint word) {
    atomicStore(Words(at).value, word, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed);
}

CONSTANT uint block_bytes = left_parts * subgroup * 16;

INLINE Address operand_address(Params p, Address region, uint n, uint slot, uint j) {
    Stride block = n / side * k_blocks(p) + slot * run_blocks(p) + j / side;
    uint position = table_entry(table_address(p), left_positions + n % side * side + j % side);
    return tagged != 0 && left_parts > 1 ? word_address(region, block, position)
                                          : region + Address(block) * block_bytes + Address(position) * 2;
}

VOLATILE_REFERENCE(TaggedHalf, uint16_t, value, 2)

INLINE void put_operand(Address at, float scaled) {
    if (tagged != 0 && left_parts > 1) {
        store_word(at, tagged_word(scaled, tag_stored));
    } else if (tagged_halves) {
        TaggedHalf(at).value = uint16_t(tagged_half(scaled, tag_stored));
    } else {
        Half(at).value = uint16_t(high_bits(scaled, left_parts));
        if (left_parts > 1) Half(at + subgroup * 16).value = uint16_t(low_bits(scaled));
    }
}

// Where this invocation stores slot 0 of its only cell, by region. Valid if own_hoisted.
bool own_hoisted = false;
Address own_0, own_1;
uint own_slot_bytes;

#ifdef BACKWARD
CONSTANT uint subgroups = invocations / subgroup;
SHARED_ARRAY(uint, delta_absmax, [subgroups])

INLINE Address scales_address(Params p, uint direction, uint region, uint row_tile) {
    Stride at = region * step_stride(p, kMatrixScales, direction) +
                Stride(row_tile) * params_of(p).strides[kMatrixScales].row;
    return own_address(p, kMatrixScales, direction) + Address(at) * 4;
}
INLINE uint unit_tiles(Params p) { return (params_of(p).H + tile_columns - 1) / tile_columns; }

// Where the scales of a product's k blocks are.
Address left_scales;
uint left_run_blocks, left_unit_tiles;
INLINE void locate_left_scales(Params p, Tile tile, uint region) {
    left_run_blocks = run_blocks(p);
    left_unit_tiles = unit_tiles(p);
    left_scales = scales_address(p, tile.direction, region, tile.first_row / tile_rows) +
                  Address(params_of(p).first_depth / left_run_blocks * left_unit_tiles) * 4;
}
INLINE Address left_scale_address(uint k_block) {
    uint tile = k_block / left_run_blocks * left_unit_tiles + k_block % left_run_blocks * side / tile_columns;
    return left_scales + Address(tile) * 4;
}
INLINE uint load_left_scale(uint k_block) { return Words(left_scale_address(k_block)).value; }

// Returns the factor of a k block's products: the scale of its deltas times kTagRoom, which tagged halves already
// include. The weights have been scaled up, so without kTagRoom the products of large deltas would be infinite.
INLINE float left_factor(uint scale) { return tagged_halves ? scale_up(scale) : scale_up(scale) * kTagRoom; }
CONSTANT uint kLeastScale = kScaleExponent + 17 << 23;   // the bits of 2^-96, whose factor is the least normal number

// Sets the scale of this tile's deltas, for each gate that the phase computes. `mine` is the invocation's absmax.
INLINE void set_scale(Params p, Tile tile, uint region, float mine) {
    uint absmax = subgroupMax(floatBitsToUint(mine));
    if (subgroupElect()) delta_absmax[invocation() / subgroup] = absmax;
    barrier();
    absmax = 0;
    for (uint i = invocation() % subgroup; i < subgroups; i += subgroup) absmax = max(absmax, delta_absmax[i]);
    absmax = subgroupMax(absmax);
    if (!tagged_halves) absmax = max(absmax, kLeastScale);
    operand_down = scale_down(absmax);
    // Only the exponent of a scale matters, so its last bit can hold the tag.
    if (tagged != 0) absmax = absmax & ~1u | tag_stored;
    Address scales = scales_address(p, tile.direction, region, tile.first_row / tile_rows);
    uint gate = invocation();
    if (gate < CELL_GATES && forms(gate))
        store_word(scales + Address(slot_of(gate) * unit_tiles(p) + tile.column_tile) * 4, absmax);
}
#endif

// Computes the factors that are the same in all steps.
INLINE void compute_factors(Params p) {
    weights_up = scale_up(Words(params_of(p).weights[0] - kBlocksHeader).value);
#ifdef BACKWARD
    weights_up *= 0.5f / kTagRoom;   // without the 0.5 it may be too large for a float
#else
    uint state = at_least_1(loop_absmax(p, kAbsmaxState));
    float mask = bound(at_least_1(loop_absmax(p, kAbsmaxMask)));
    operand_up = scale_up(state) * mask;
    operand_down = scale_down(state) / mask;
#endif
}

// The position of an invocation's subgroup in the tile, and of the invocation in its subgroup.
INLINE uint lane() { return invocation() % subgroup; }
INLINE uint column_group() { return invocation() / subgroup % column_groups; }
INLINE uint depth_group() { return invocation() / subgroup / column_groups; }

CONSTANT uint left_vectors = left_parts * subgroup, right_vectors = right_parts * subgroup;   // per block

INLINE Blocks operand_blocks(Params p, Tile tile, uint region) {
    return Blocks(region_address(p, tile.direction, region),
                  (Stride(tile.first_row / side) * k_blocks(p) + params_of(p).first_depth) * left_vectors,
                  k_blocks(p) * left_vectors);
}
INLINE Blocks weight_blocks(Params p, Tile tile) {
    Stride first = Stride((tile.column_tile * column_groups + column_group()) * matrix_columns);
    return Blocks(weights_address(p, tile.direction), first * params_of(p).depth * right_vectors,
                  params_of(p).depth * right_vectors);
}

INLINE uint sums_at(uint slot, uint r, uint c) {
    return (slot * tile_rows + r * side) * row_vec4s + (column_group() * group_columns + c * side) / 4;
}
INLINE void store_sums(SumMatrix found[matrix_rows][matrix_columns], uint slot) {
    UNROLL for (uint r = 0; r < matrix_rows; ++r)
        UNROLL for (uint c = 0; c < matrix_columns; ++c)
            coopMatStore(found[r][c], sums, sums_at(slot, r, c), row_vec4s, gl_CooperativeMatrixLayoutRowMajor);
}

// Stores the tile's sums in shared memory for tile_sum. If there is only room for the sums of half of the depth groups,
// the sums of the other half are added to these first.
INLINE void share_sums(SumMatrix found[matrix_rows][matrix_columns]) {
    if (sum_slots < depth_groups) {
        if (depth_group() >= sum_slots) store_sums(found, depth_group() - sum_slots);
        barrier();
        if (depth_group() < sum_slots)
            UNROLL for (uint r = 0; r < matrix_rows; ++r)
                UNROLL for (uint c = 0; c < matrix_columns; ++c) {
                    SumMatrix other;
                    coopMatLoad(other, sums, sums_at(depth_group(), r, c), row_vec4s,
                                gl_CooperativeMatrixLayoutRowMajor);
                    found[r][c] = found[r][c] + other;
                }
        subgroupBarrier();
    }
    if (depth_group() < sum_slots) store_sums(found, depth_group());
    barrier();
}

INLINE void multiply(Params p, Tile tile, uint region) {
    compute_factors(p);
#ifdef BACKWARD
    locate_left_scales(p, tile, region);
#endif
    SumMatrix found[matrix_rows][matrix_columns];
    Run run = Run(depth_group(), params_of(p).depth, depth_groups, lane());
    multiply_blocks(operand_blocks(p, tile, region), weight_blocks(p, tile), run, found);
    share_sums(found);
}

INLINE float tile_sum(uint row, uint column) {
    float sum = 0.0f;
    UNROLL for (uint slot = 0; slot < sum_slots; ++slot)
        sum += sums[(slot * tile_rows + row) * row_vec4s + column / 4][column % 4];
#ifdef BACKWARD
    return sum * weights_up * 2.0f;
#else
    sum *= weights_up;
    sum *= operand_up;
    return tagged_halves ? sum / kTagRoom : sum;
#endif
}

INLINE void store_operand(Params p, uint direction, uint region, uint n, uint slot, uint j, float value) {
    Address at;
    if (own_hoisted)
        at = (region == 0 ? own_0 : own_1) + slot * own_slot_bytes;
    else
        at = operand_address(p, region_address(p, direction, region), n, slot, j);
    put_operand(at, value * operand_down);
}

#endif
