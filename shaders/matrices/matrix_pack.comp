// Packs numbers into the blocks of an operand: see MatrixPackPush.
#include "common/memory.glsl"
#include "matrices/units.glsl"

WORKGROUP_SIZE(kPackGroup)
SPECIALIZED(kMatrixRows, uint, right, 0)   // 1: the right operand
CONSTANT uint parts = right != 0 ? right_parts : left_parts;
PUSH_CONSTANTS(MatrixPackPush, p)

// Returns a scaled number. Its magnitude is below 2^15, unless it belongs to a step past a row's length: the absmax
// ignores these. Such numbers are clamped, because they must stay finite.
INLINE float scaled(float value, float down) {
    const float most = 65504.0f;   // largest half-precision number
    bool is_finite = (floatBitsToUint(value) & 0x7fffffffu) < 0x7f800000u;
    return is_finite ? clamp(value * down, -most, most) : value;
}

void main() {
    uint lane = gl_LocalInvocationID.x % subgroup;
    uint first_block = ((gl_WorkGroupID.y * kGroupsInX + gl_WorkGroupID.x) * (kPackGroup / subgroup) +
                        gl_LocalInvocationID.x / subgroup) * kPackEach;
    uint batch = gl_WorkGroupID.z;
    uint absmax = Words(p.absmax).value;
    float down = scale_down(absmax);
    if (right != 0 && first_block == 0 && batch == 0 && lane == 0) Words(p.out_ - kBlocksHeader).value = absmax;
    Address table = p.table + Address((right != 0 ? right_elements : left_elements) + lane * kMatrixElements) * 4;
    uvec4 table_words[2] = {Vectors(table).value, Vectors(table + 16).value};
    uint i_in[kMatrixElements], k_in[kMatrixElements];   // coordinates of this invocation's elements within a block
    UNROLL for (uint e = 0; e < kMatrixElements; ++e) {
        uint element = table_words[e / 4][e % 4];
        i_in[e] = element / side;
        k_in[e] = element % side;
    }
    UNROLL for (uint each = 0; each < kPackEach; ++each) {
        uint at = first_block + each, i_block, k_block;
        if (at >= p.i_blocks * p.k_blocks) return;
        // Neighbouring invocations load from neighbouring addresses.
        if (p.in_i == 1) {
            i_block = at % p.i_blocks;
            k_block = at / p.i_blocks;
        } else {
            k_block = at % p.k_blocks;
            i_block = at / p.k_blocks;
        }
        uint run_blocks = p.run_padded / side, first_k = k_block % run_blocks * side;
        uint tile_blocks = p.columns / side, first_column = 0, first_i = i_block * side;
        if (p.units != 0) {
            first_column = i_block % tile_blocks * side;
            first_i = i_block / tile_blocks * p.units;
        }
        Stride run = batch / p.heads * p.in_batch + batch % p.heads * p.in_head + k_block / run_blocks * p.in_run;
        float values[kMatrixElements];
        UNROLL for (uint e = 0; e < kMatrixElements; ++e) {
            uint i = first_i + i_in[e], k = first_k + k_in[e];
            bool there = k < p.run_length;
            Stride from = run + k * p.in_k;
            if (p.units != 0) {
                uint column = first_column + i_in[e];
                there = there && column < p.units * p.products;
                i = first_i + column / p.products;
                from += (p.gate_order >> (4 * (column % p.products)) & 15) * p.in_slot;
            }
            values[e] = 0.0f;
            if (there && i < p.i_count) values[e] = load_tensor(0, p.in_, from + i * p.in_i);
        }
        uvec4 high, low;
        UNROLL for (uint word = 0; word < 4; ++word) {
            float first = scaled(values[2 * word], down), second = scaled(values[2 * word + 1], down);
            high[word] = high_bits(first, parts) | high_bits(second, parts) << 16;
            low[word] = low_bits(first) | low_bits(second) << 16;
        }
        Stride to = batch * p.out_batch + (Stride(i_block) * p.k_blocks + k_block) * (parts * subgroup) + lane;
        Vectors(vector_address(p.out_, to)).value = high;
        if (parts > 1) Vectors(vector_address(p.out_, to + subgroup)).value = low;
    }
}
