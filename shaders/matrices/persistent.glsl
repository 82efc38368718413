// Runs all steps of a call in one dispatch. Every workgroup has a tile of rows and columns as in tiles.glsl and keeps
// the tile's weights in registers. Weights that do not fit are in shared memory, or are loaded again in every step.
// A step multiplies what all tiles of the same rows stored in the step before, so workgroups wait for each other in one
// of two ways. Usually a workgroup adds 1 to its rows' counter after it has stored its part, and before the next product
// it waits until the counter includes all others. If a subgroup multiplies only few blocks, their words are tagged
// instead: it loads them again and again until every word has the step's tag. Then there is no wait for stores to
// complete or for counters.
// A device need not run all workgroups at the same time, so a wait could last forever. A workgroup that has waited for
// too many spin iterations therefore gives up, and the others, left waiting, do the same. A second dispatch follows,
// whose workgroups compute all columns of their rows, without a wait. If the first dispatch gave up, the second
// runs all steps again; otherwise it returns at once.
#ifndef VKRNN_PERSISTENT_GLSL
#define VKRNN_PERSISTENT_GLSL
#define HOISTS_ELEMENT
#define MATRIX_UNITS
#define PERSISTENT
#include "common/cell_step.glsl"
#include "matrices/matrix_tiles.glsl"
#include "tile_step/tile_cells.glsl"
#include "matrices/hoisted_element.glsl"

SPECIALIZED(kKeptBlocks, uint, kept_blocks, 1)   // k blocks of weights that a subgroup keeps
SPECIALIZED(kStreams, uint, streams, 0)          // 1: a subgroup loads the other blocks in every step
SPECIALIZED(kAlone, uint, alone, 0)              // 1: this is the second dispatch
SPECIALIZED(kMaxSpins, uint, max_spins, 0)
SPECIALIZED(kPersistentToInitial, uint, to_initial, 0)   // 1: backward goes on to step -1
SPECIALIZED(kWholeBlocks, uint, whole_blocks, 0)

RightMatrix kept[kept_blocks][matrix_columns][right_parts];
SHARED(bool, arrived)

// Returns the address of the word that is not 0 if a workgroup gave up. The counters follow it, each in its own cache
// line.
INLINE Address barriers(Params p) { return params_of(p).at[2 * kBarriers]; }
INLINE Address counter(Params p, Tile tile) {
    uint row_tiles = (params_of(p).N + tile_rows - 1) / tile_rows;
    return barriers(p) + Address(1 + tile.direction * row_tiles + tile.first_row / tile_rows) * kCounterBytes;
}

// Adds 1 to the rows' counter, unless words have tags or no other workgroup waits.
INLINE void hand_over(Params p, Tile tile) {
    if (tagged != 0 || alone != 0) return;
    workgroup_barrier();
    if (invocation() == 0)
        atomicAdd(Words(counter(p, tile)).value, 1, gl_ScopeDevice, gl_StorageSemanticsBuffer,
                  gl_SemanticsRelease | gl_SemanticsMakeAvailable);
}

// Makes the second dispatch run all steps again.
INLINE void give_up(Params p) {
    atomicOr(Words(barriers(p)).value, 1, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed);
}

// Tells the host that steps run again.
INLINE void report_failure(Params p) {
    if (invocation() == 0) Words(params_of(p).at[2 * kBarriers + 1]).value = 1;
}

// Waits until `parts` parts are stored. Returns false if it gave up.
INLINE bool wait(Params p, Address at, uint parts) {
    if (invocation() == 0) {
        uint spins = 0;
        arrived = false;
        while (!arrived && spins < max_spins) {
            uint stored =
                atomicLoad(Words(at).value, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed);
            arrived = stored >= parts;
            ++spins;
        }
        if (!arrived) give_up(p);
        memoryBarrier(gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquire | gl_SemanticsMakeVisible);
    }
    workgroup_barrier();
    return arrived;
}

// kept_block returns the k block at index i of those whose weights this subgroup keeps. If there is none,
// has_kept_block returns false, and kept_block returns some other block.
INLINE bool has_kept_block(Params p, uint i) {
    return whole_blocks != 0 || depth_group() + i * depth_groups < params_of(p).depth;
}
INLINE uint kept_block(Params p, uint i) {
    uint k = depth_group() + i * depth_groups;
    return whole_blocks != 0 ? k : min(k, params_of(p).depth - 1);
}

// Returns this invocation's vector of the weights' k block at index i.
INLINE uvec4 load_weights(Params p, Blocks right, uint i, uint c, uint h) {
    Stride first = right.first + Stride(kept_block(p, i) * right_parts + h) * subgroup + Stride(c) * right.i_apart;
    return load_block(right.base, first, lane());
}

// Returns where this invocation has a vector of weights in shared memory. No other one reads it.
INLINE uint weights_at(uint i, uint c, uint h) {
    return first_weight + ((i * matrix_columns + c) * right_parts + h) * invocations + invocation();
}

INLINE void keep_weights(Params p, Tile tile) {
    Blocks right = weight_blocks(p, tile);
    UNROLL for (uint c = 0; c < matrix_columns; ++c)
        UNROLL for (uint h = 0; h < right_parts; ++h) {
            UNROLL for (uint i = 0; i < kept_blocks; ++i) {
                uvec4 block = load_weights(p, right, i, c, h);
                FILL_MATRIX(kept[i][c][h], block)
            }
            for (uint i = 0; i < shared_blocks; ++i)
                sums[weights_at(i, c, h)] = uintBitsToFloat(load_weights(p, right, kept_blocks + i, c, h));
        }
}

// Returns the k blocks whose weights this subgroup loads in every step.
INLINE Run streamed(Params p) {
    return Run(depth_group() + kept_blocks * depth_groups, params_of(p).depth, depth_groups, lane());
}
INLINE bool is_streamed(Params p) { return streams != 0 && streamed(p).begin < params_of(p).depth; }

// The scales of the left operand's blocks that kept weights multiply, by index. Each lane loads one of `subgroup`
// scales.
CONSTANT uint all_kept = kept_blocks + shared_blocks;
CONSTANT uint scale_loads = scales_left ? (all_kept + subgroup - 1) / subgroup : 1;
uint scales[scale_loads];
INLINE void load_scales(Params p) {
#ifdef BACKWARD
    UNROLL for (uint i = 0; i < scale_loads; ++i) {
        Address at = left_scale_address(kept_block(p, min(i * subgroup + lane(), all_kept - 1)));
        if (tagged == 0)
            scales[i] = Words(at).value;
        else
            scales[i] = atomicLoad(Words(at).value, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed);
    }
#endif
}
INLINE uint kept_scale(uint i) { return scales_left ? subgroupBroadcast(scales[i / subgroup], i % subgroup) : 0; }

// Does the same as multiply. Takes the weights that this subgroup keeps from registers or shared memory and loads the
// others, of which the first blocks are already there.
INLINE void multiply_kept(Params p, Tile tile, uint region) {
    Blocks left = operand_blocks(p, tile, region);
#ifdef BACKWARD
    locate_left_scales(p, tile, region);
#endif
    load_scales(p);
    SumMatrix found[matrix_rows][matrix_columns];
    CLEAR_SUMS(found)
    UNROLL for (uint i = 0; i < all_kept; ++i) {
        uint k = depth_group() + i * depth_groups;
        LeftMatrix a[matrix_rows][left_parts];
        UNROLL for (uint r = 0; r < matrix_rows; ++r)
            UNROLL for (uint h = 0; h < left_parts; ++h) {
                Stride first = left.first + Stride(k * left_parts + h) * subgroup + Stride(r) * left.i_apart;
                uvec4 block = uvec4(0);   // past the end
                if (k < params_of(p).depth) block = load_block(left.base, first, lane());
                FILL_MATRIX(a[r][h], block)
            }
        if (i < kept_blocks) {
            multiply_add(a, kept[i], kept_scale(i), found);
        } else {
            RightMatrix b[matrix_columns][right_parts];
            UNROLL for (uint c = 0; c < matrix_columns; ++c)
                UNROLL for (uint h = 0; h < right_parts; ++h) {
                    uvec4 block = floatBitsToUint(sums[weights_at(i - kept_blocks, c, h)]);
                    FILL_MATRIX(b[c][h], block)
                }
            multiply_add(a, b, kept_scale(i), found);
        }
    }
    if (is_streamed(p)) {
        load_first_left(left, streamed(p));
        add_run(left, weight_blocks(p, tile), streamed(p), found);
    }
    share_sums(found);
}

// A word of a tagged block has one number with two parts, or two numbers with one part each. stored_tags has a bit for
// each number of the invocation's words that some workgroup stores, by row of matrices and word of a vector. With two
// parts, bit v is for vector v; with one part, it is where the number's tag is. stored_at_end is the same for the last
// block of a run, which may have fewer units. loaded_lane is the lane whose vector is loaded: lane 0 if none of the
// invocation's own numbers is ever stored.
uint stored_tags[matrix_rows][4], stored_at_end[4], loaded_lane[matrix_rows][left_parts];

INLINE uint word_of(uint element) { return left_parts > 1 ? (element & 4) >> 1 | element & 1 : element >> 1; }
INLINE uint vector_of(uint element) { return left_parts > 1 ? element >> 1 & 1 : 0; }
INLINE uint tag_bit_of(uint element) {
    return left_parts > 1 ? 1u << vector_of(element) : kHalfTags & 0xffffu << 16 * (element & 1);
}

INLINE void compute_stored(Params p, Tile tile) {
    uint units_at_end = params_of(p).H - (run_blocks(p) - 1) * side;
    UNROLL for (uint w = 0; w < 4; ++w) {
        stored_at_end[w] = 0;
        UNROLL for (uint r = 0; r < matrix_rows; ++r) stored_tags[r][w] = 0;
    }
    UNROLL for (uint r = 0; r < matrix_rows; ++r) UNROLL for (uint v = 0; v < left_parts; ++v) loaded_lane[r][v] = 0;
    UNROLL for (uint e = 0; e < kMatrixElements; ++e) {
        uint element = table_entry(table_address(p), left_elements + lane() * kMatrixElements + e);
        if (element % side < units_at_end) stored_at_end[word_of(e)] |= tag_bit_of(e);
        UNROLL for (uint r = 0; r < matrix_rows; ++r)
            if (tile.first_row + r * side + element / side < params_of(p).N) {
                stored_tags[r][word_of(e)] |= tag_bit_of(e);
                loaded_lane[r][vector_of(e)] = lane();
            }
    }
}

#ifdef BACKWARD
CONSTANT bool hoists_views = false;   // backward this is not faster
INLINE bool hoists_element() { return one_cell; }
#else
// Forward, computing the views beforehand is 5 to 15 % faster if weights and words take 48 registers per invocation,
// and as much slower if they take 64.
CONSTANT bool hoists_views = kept_blocks * (2 * matrix_rows + right_parts * matrix_columns) <= 12;
// Excludes calls such as an LSTM with H=256 in a 16-bit type without training: it took 2.4 us per step on an H100 with
// the values computed beforehand, and 2.0 us on an H200 without.
INLINE bool hoists_element() { return one_cell && (right_parts > 1 || kept_blocks > 1 || keep != 0); }
#endif

// Computes what is the same in all steps of this invocation's only cell, and where it stores its element of the
// operand.
INLINE void hoist_own(Params p, Tile tile) {
    Element e;
    own_hoisted = one_cell;
    own_slot_bytes = run_blocks(p) * block_bytes;
    if (one_cell && find_cell(p, tile, invocation(), push.step, e)) {
        if (hoists_element()) hoist_element(p, e, hoists_views);
        own_0 = operand_address(p, region_address(p, tile.direction, 0), e.n, 0, e.j);
        own_1 = operand_address(p, region_address(p, tile.direction, 1), e.n, 0, e.j);
    }
    element_hoisted = hoists_element();
    views_hoisted = hoists_element() && hoists_views;
}

VOLATILE_REFERENCE(TaggedVectors, uvec4, value, 16)

// Loads the words and scales of all blocks that this subgroup multiplies. Other workgroups may store them at the same
// time. That is safe because each unit of memory that they write in one store has its own tag.
INLINE void load_tagged(Params p, Blocks left, out uvec4 words[kept_blocks][matrix_rows][left_parts]) {
    UNROLL for (uint i = 0; i < kept_blocks; ++i) {
        uint k = kept_block(p, i);
        UNROLL for (uint r = 0; r < matrix_rows; ++r)
            UNROLL for (uint v = 0; v < left_parts; ++v) {
                Stride first = left.first + Stride(k * left_parts + v) * subgroup + Stride(r) * left.i_apart;
                words[i][r][v] = TaggedVectors(vector_address(left.base, first + loaded_lane[r][v])).value;
            }
    }
    load_scales(p);
}

// Returns true if all words and scales have the step's tag.
INLINE bool are_there(Params p, uvec4 words[kept_blocks][matrix_rows][left_parts]) {
    uint tags = tag_loaded * (left_parts > 1 ? 1u : kHalfTags), outdated = 0;
    // In this order, the first instructions need the first words of all loads. With the words of one load after another,
    // NVRTC 13.0 makes a load wait for the one before, in some kernels.
    UNROLL for (uint w = 0; w < 4; ++w)
        UNROLL for (uint i = 0; i < kept_blocks; ++i) {
            bool at_end = whole_blocks == 0 && (kept_block(p, i) + 1) % run_blocks(p) == 0;
            UNROLL for (uint r = 0; r < matrix_rows; ++r)
                UNROLL for (uint v = 0; v < left_parts; ++v) {
                    uint stored = at_end ? stored_tags[r][w] & stored_at_end[w] : stored_tags[r][w];
                    outdated |= (words[i][r][v][w] ^ tags) & (left_parts > 1 ? stored >> v & 1 : stored);
                }
        }
    if (scales_left)
        UNROLL for (uint i = 0; i < scale_loads; ++i) outdated |= (scales[i] ^ tag_loaded) & 1;
    return outdated == 0;
}

// Returns two consecutive elements' high parts, or low parts if `part` is 1.
INLINE uint part_of(uvec4 words[left_parts], uint pair, uint part) {
    if (left_parts == 1) return untagged_halves(words[0][pair]);
    uint first = words[left_parts - 1 & pair][pair & 2], second = words[left_parts - 1 & pair][pair & 2 | 1];
    return part == 0 ? first & 0xffffu | second << 16 : first >> 16 | second & 0xffff0000u;
}

// Does the same as multiply_kept, once all words have arrived.
INLINE void multiply_tagged(Params p, Tile tile, uint region) {
    Blocks left = operand_blocks(p, tile, region);
    uvec4 words[kept_blocks][matrix_rows][left_parts];
#ifdef BACKWARD
    locate_left_scales(p, tile, region);
#endif
    load_tagged(p, left, words);
    uint spins = 0;
    while (spins < max_spins && !subgroupAll(are_there(p, words))) {
        load_tagged(p, left, words);
        ++spins;
    }
    if (spins == max_spins) arrived = false;
    SumMatrix found[matrix_rows][matrix_columns];
    CLEAR_SUMS(found)
    UNROLL for (uint i = 0; i < kept_blocks; ++i) {
        bool there = has_kept_block(p, i);
        LeftMatrix a[matrix_rows][left_parts];
        UNROLL for (uint r = 0; r < matrix_rows; ++r)
            UNROLL for (uint h = 0; h < left_parts; ++h) {
                uvec4 block;
                UNROLL for (uint pair = 0; pair < 4; ++pair) block[pair] = there ? part_of(words[i][r], pair, h) : 0;
                FILL_MATRIX(a[r][h], block)
            }
        multiply_add(a, kept[i], kept_scale(i), found);
    }
    share_sums(found);
}

// Prepares the operand's memory for a workgroup that runs all steps of its rows. Tagged words had another order, so
// there may be parts of other rows' numbers where the padding units are now. An infinity there would make every sum
// NaN.
INLINE void start_alone(Params p, Tile tile) {
    uint units = run_blocks(p) * side, slots = k_blocks(p) / run_blocks(p), padding = units - params_of(p).H;
    for (uint at = invocation(); at < tile_rows * slots * padding; at += invocations) {
        uint n = tile.first_row + at / padding / slots, slot = at / padding % slots, j = params_of(p).H + at % padding;
        for (uint region = 0; region < 2; ++region)
            put_operand(operand_address(p, region_address(p, tile.direction, region), n, slot, j), 0.0f);
    }
#ifndef BACKWARD
    // The operand of the first step. Backward, the last step has no product.
    compute_factors(p);
    for (uint at = invocation(); at < tile_rows * params_of(p).H; at += invocations) {
        uint n = tile.first_row + at / params_of(p).H, j = at % params_of(p).H;
        if (n >= params_of(p).N) break;
        store_operand(p, tile.direction, 0, n, 0, j, first_operand(p, tile.direction, n, j));
    }
#endif
    workgroup_barrier();
}

void main() {
    Params p = Params(push.params);
    // Another workgroup may give up at any moment, and the invocations of this one must all return or all continue. So
    // one invocation looks, and the others follow it.
    if (invocation() == 0)
        arrived = atomicLoad(Words(barriers(p)).value, gl_ScopeDevice, gl_StorageSemanticsNone,
                             gl_SemanticsRelaxed) == 0;
    barrier();
    if (arrived == (alone != 0)) return;
    Tile tile = this_tile(p, tile_rows);
    Address own_counter = counter(p, tile);
    uint tiles = unit_tiles(p);
    int steps = int(push.steps);
#ifdef BACKWARD
    // A step waits for the tag of step + loaded_from and stores the tag of step + stored_to.
    const int loaded_from = 1, stored_to = 0;
    int begin = int(params_of(p).T) - 1, increment = -1, end = max(push.step - steps, -1);
    if (end < 0) end -= int(to_initial);
#else
    const int loaded_from = 0, stored_to = 1;
    int begin = 0, increment = 1, end = min(push.step + steps, int(params_of(p).T));
#endif
    if (alone != 0) {
        report_failure(p);
        start_alone(p, tile);
        for (int step = begin; step != end; step += increment)
            for (tile.column_tile = 0; tile.column_tile < tiles; ++tile.column_tile) {
                CellInputs early = fetch_early(p, tile, step);
                if (has_product(p, step)) multiply(p, tile, operand_region(step));
                finish_step(p, tile, step, early);
                workgroup_barrier();
            }
        return;
    }
    keep_weights(p, tile);
    hoist_own(p, tile);
    compute_factors(p);
    if (tagged != 0) {
        compute_stored(p, tile);
        barrier();   // `arrived` may be overwritten from here on
    }
    for (int step = push.step; step != end; step += increment) {
        CellInputs early = fetch_early(p, tile, step);
        if (tagged != 0) {
            tag_loaded = tag_of(step + loaded_from);
            tag_stored = tag_of(step + stored_to);
            if (has_product(p, step)) {
                multiply_tagged(p, tile, operand_region(step));
                if (!arrived) {
                    give_up(p);
                    return;
                }
            }
            finish_step(p, tile, step, early);
            barrier();   // the sums in shared memory may be overwritten from here on
        } else {
            // The weights do not depend on other workgroups, so they are loaded before the wait.
            if (is_streamed(p)) load_first_right(weight_blocks(p, tile), streamed(p));
            if (step != push.step && !wait(p, own_counter, tiles * uint((step - begin) * increment))) return;
            if (has_product(p, step)) multiply_kept(p, tile, operand_region(step));
            finish_step(p, tile, step, early);
        }
    }
}

#endif
