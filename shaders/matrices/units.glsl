// All kernels on matrix units share this: blocks of half-precision numbers, their scales, and the sums of a subgroup.
// See abi.h for the order in memory.
#ifndef VKRNN_MATRIX_UNITS_GLSL
#define VKRNN_MATRIX_UNITS_GLSL
#pragma use_vulkan_memory_model
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_vote : require
#include "abi.h"

layout(constant_id = kMatrixSide) const uint side = 16;
layout(constant_id = kMatrixSubgroup) const uint subgroup = 32;
layout(constant_id = kLeftHalves) const uint left_halves = 2;
layout(constant_id = kRightHalves) const uint right_halves = 2;

layout(buffer_reference, std430, buffer_reference_align = 16) buffer Vectors { uvec4 value; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { uint value; };
layout(buffer_reference, std430, buffer_reference_align = 2) buffer Half { uint16_t value; };

#define LeftMatrix coopmat<float16_t, gl_ScopeSubgroup, side, side, gl_MatrixUseA>
#define RightMatrix coopmat<float16_t, gl_ScopeSubgroup, side, side, gl_MatrixUseB>
#define SumMatrix coopmat<float, gl_ScopeSubgroup, side, side, gl_MatrixUseAccumulator>

const uint block_elements = side * side;
const uint left_elements = 0, left_positions = block_elements;             // parts of the table
const uint right_elements = 2 * block_elements, right_positions = 3 * block_elements;

uint table_entry(Address table, uint at) { return Words(table + Address(at) * 4).value; }

// Powers of two that bring numbers of up to such a magnitude (the bits of a float) to less than 2^15, and back. So the
// halves of what is 2^-21 of the largest still have all their digits.
const uint kScaleExponent = 14;
uint scale_exponent(uint largest) { return clamp(largest >> 23, kScaleExponent + 1, 253); }
float scale_down(uint largest) { return uintBitsToFloat(254 + kScaleExponent - scale_exponent(largest) << 23); }
float scale_up(uint largest) { return uintBitsToFloat(scale_exponent(largest) - kScaleExponent << 23); }

// Returns the largest power of two that is not above such a magnitude.
float bound(uint largest) { return uintBitsToFloat(clamp(largest >> 23, 1, 253) << 23); }

float finite(float value) { return (floatBitsToUint(value) & 0x7fffffffu) < 0x7f800000u ? value : 0.0; }

// The halves of a scaled number, which is rounded to a half's digits by integers: compilers take a conversion to half
// precision and back for nothing. Of two halves an infinity or NaN is the low one, which no other low half multiplies, and
// the high one has its sign: other numbers' low halves would make a NaN of infinities in the high one.
float rounded(float value, uint halves) {
    uint bits = floatBitsToUint(value);
    if ((bits & 0x7fffffffu) < 0x7f800000u) return uintBitsToFloat(bits + 0xfffu + (bits >> 13 & 1u) & ~0x1fffu);
    return halves > 1 ? uintBitsToFloat(bits & 0x80000000u | floatBitsToUint(1.0)) : value;
}
uint high_bits(float value, uint halves) { return packHalf2x16(vec2(rounded(value, halves), 0.0)); }
uint low_bits(float value) { return packHalf2x16(vec2(value - rounded(value, 2), 0.0)); }

// A word of a tagged operand has both halves of a scaled number: in its low bits the high half, whose last bit is the tag,
// and in its high bits the low half, which makes good what the tag changed.
uint tagged_word(float value, uint tag) {
    uint bits = floatBitsToUint(value), high;
    if ((bits & 0x7fffffffu) < 0x7f800000u) {
        uint nearest = (bits - (tag << 13) + 0x2000u & ~0x3fffu) + (tag << 13);
        high = packHalf2x16(vec2(uintBitsToFloat(nearest), 0.0)) & 0xfffeu | tag;
    } else {
        high = packHalf2x16(vec2(rounded(value, 2), 0.0)) | tag;
    }
    return packHalf2x16(vec2(0.0, value - unpackHalf2x16(high).x)) & 0xffff0000u | high;
}

// An invocation's words of a block are two vectors: of elements 0, 1, 4, 5 and of 2, 3, 6, 7, which where a block has 16
// rows are those of one row each. Returns the element of a word, and the address of the word at a position of the table.
uint element_of_word(uint vector, uint word) { return word & 1 | (word & 2) << 1 | vector << 1; }
Address word_address(Address base, Stride block, uint position) {
    uint element = position % kMatrixElements, lane = position / kMatrixElements;
    return base + Address((block * 2 + (element >> 1 & 1)) * subgroup + lane) * 16 + ((element & 4) >> 1 | element & 1) * 4;
}

Address vector_address(Address base, Stride index) { return base + Address(index) * 16; }

// Loads this invocation's vector of the block whose first vector is `first`.
uvec4 load_block(Address base, Stride first, uint lane) { return Vectors(vector_address(base, first + lane)).value; }

#define FILL_MATRIX(MATRIX, VECTOR)                                   \
    [[unroll]] for (uint word = 0; word < 4; ++word) {                \
        f16vec2 pair = unpackFloat2x16(VECTOR[word]);                 \
        MATRIX[2 * word] = pair.x;                                    \
        MATRIX[2 * word + 1] = pair.y;                                \
    }

#endif
