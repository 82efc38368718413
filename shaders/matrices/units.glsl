// Shared by all kernels on matrix units: blocks of half-precision numbers, their scales, and the matrix types of a
// subgroup. See matrices_abi.h for the order in memory.
#ifndef VKRNN_MATRIX_UNITS_GLSL
#define VKRNN_MATRIX_UNITS_GLSL
#ifndef __cplusplus
#pragma use_vulkan_memory_model
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int16 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_vote : require
#endif
#include "common/language.glsl"
#include "matrices/matrices_abi.h"

SPECIALIZED(kMatrixSide, uint, side, 16)
SPECIALIZED(kMatrixSubgroup, uint, subgroup, 32)
SPECIALIZED(kLeftParts, uint, left_parts, 2)
SPECIALIZED(kRightParts, uint, right_parts, 2)

REFERENCE(Vectors, uvec4, value, 16)
REFERENCE(Words, uint, value, 4)
REFERENCE(Half, uint16_t, value, 2)

#define LeftMatrix coopmat<float16_t, gl_ScopeSubgroup, side, side, gl_MatrixUseA>
#define RightMatrix coopmat<float16_t, gl_ScopeSubgroup, side, side, gl_MatrixUseB>
#define SumMatrix coopmat<float, gl_ScopeSubgroup, side, side, gl_MatrixUseAccumulator>

CONSTANT uint block_elements = side * side;
CONSTANT uint left_elements = 0, left_positions = block_elements;             // offsets of the table's four parts
CONSTANT uint right_elements = 2 * block_elements, right_positions = 3 * block_elements;

INLINE uint table_entry(Address table, uint at) { return Words(table + Address(at) * 4).value; }

// scale_down returns a power of two that brings numbers up to the magnitude `absmax` (the bits of a float) below 2^15;
// scale_up returns its inverse. Numbers down to 2^-21 times it then keep all digits of both parts.
CONSTANT uint kScaleExponent = 14;
INLINE uint scale_exponent(uint absmax) { return clamp(absmax >> 23, kScaleExponent + 1, 253); }
INLINE float scale_down(uint absmax) { return uintBitsToFloat(254 + kScaleExponent - scale_exponent(absmax) << 23); }
INLINE float scale_up(uint absmax) { return uintBitsToFloat(scale_exponent(absmax) - kScaleExponent << 23); }

// Returns the least power of two that is not below a magnitude, given as the bits of a float.
INLINE float bound(uint magnitude) { return uintBitsToFloat(clamp(magnitude + 0x7fffffu >> 23, 1, 253) << 23); }

INLINE float finite(float value) { return (floatBitsToUint(value) & 0x7fffffffu) < 0x7f800000u ? value : 0.0f; }

// The high and low part of a scaled number. The high part is rounded to half precision with integer operations, because
// compilers optimize a conversion to half precision and back away.
// If there are two parts, an infinity or NaN goes to the low part, and the high part becomes 1 with its sign. The
// product of two low parts is never computed. A high part is multiplied by low parts of other numbers, which would turn
// an infinity into NaN.
INLINE float rounded(float value, uint parts) {
    uint bits = floatBitsToUint(value);
    if ((bits & 0x7fffffffu) < 0x7f800000u) return uintBitsToFloat(bits + 0xfffu + (bits >> 13 & 1u) & ~0x1fffu);
    return parts > 1 ? uintBitsToFloat(bits & 0x80000000u | floatBitsToUint(1.0f)) : value;
}
INLINE uint high_bits(float value, uint parts) { return packHalf2x16(vec2(rounded(value, parts), 0.0f)); }
INLINE uint low_bits(float value) { return packHalf2x16(vec2(value - rounded(value, 2), 0.0f)); }

// In a tagged operand, each word or number that a workgroup stores at once has a tag of one bit, which shows others
// whether it has arrived.
// With one part, the tag of a half-precision number is the highest bit of its exponent. So numbers are scaled below 1/2
// instead of 2^15, and the exponent of 1 stands for that of infinity and NaN. Numbers below 2^-13 times the absmax have
// fewer digits, and an error of at most 2^-24 times the absmax.
CONSTANT float kTagRoom = 1.52587890625e-5f;   // 2^-16
CONSTANT uint kHalfTags = 0x40004000u;         // of two numbers in a word
INLINE uint tagged_half(float value, uint tag) {
    return high_bits(value * kTagRoom, 1) & ~kHalfTags | tag << 14;
}
INLINE uint untagged_halves(uint word) {
    return word & ~kHalfTags | (word & 0x3c003c00u) + 0x04000400u & kHalfTags;
}

// With two parts, a word has both parts of a scaled number. The lower 16 bits are the high part, whose last bit is the
// tag. The upper 16 bits are the low part, which corrects what the tag changed.
INLINE uint tagged_word(float value, uint tag) {
    uint bits = floatBitsToUint(value), high;
    if ((bits & 0x7fffffffu) < 0x7f800000u) {
        uint nearest = (bits - (tag << 13) + 0x2000u & ~0x3fffu) + (tag << 13);
        high = packHalf2x16(vec2(uintBitsToFloat(nearest), 0.0f)) & 0xfffeu | tag;
    } else {
        high = packHalf2x16(vec2(rounded(value, 2), 0.0f)) | tag;
    }
    return packHalf2x16(vec2(0.0f, value - unpackHalf2x16(high).x)) & 0xffff0000u | high;
}

// An invocation's words of a tagged block with two parts are two vectors, with elements 0, 1, 4, 5 and 2, 3, 6, 7. If a
// block has 16 rows, each of them is from one row. word_address returns the address of the word at a position of the
// table.
INLINE Address word_address(Address base, Stride block, uint position) {
    uint element = position % kMatrixElements, lane = position / kMatrixElements;
    return base + Address((block * 2 + (element >> 1 & 1)) * subgroup + lane) * 16 +
           ((element & 4) >> 1 | element & 1) * 4;
}

INLINE Address vector_address(Address base, Stride index) { return base + Address(index) * 16; }

// Loads this invocation's vector of the block whose first vector is at index `first`.
INLINE uvec4 load_block(Address base, Stride first, uint lane) {
    return Vectors(vector_address(base, first + lane)).value;
}

#define FILL_MATRIX(MATRIX, VECTOR)                   \
    UNROLL for (uint word = 0; word < 4; ++word) {    \
        f16vec2 pair = unpackFloat2x16(VECTOR[word]); \
        MATRIX[2 * word] = pair.x;                    \
        MATRIX[2 * word + 1] = pair.y;                \
    }

#endif
