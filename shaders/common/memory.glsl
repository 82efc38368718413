// Loads and stores by device address, in elements of the kernel's type.
#ifndef VKRNN_MEMORY_GLSL
#define VKRNN_MEMORY_GLSL

#include "common/abi.h"
#include "common/real.glsl"

#ifdef VKRNN_FLOAT64
CONSTANT uint kElementBytes = 8;
REFERENCE(Scalar, Real, value, 8)
REFERENCE(Vector, Real4, value, 32)
#else
CONSTANT uint kElementBytes = 4;
REFERENCE(Scalar, Real, value, 4)
REFERENCE(Vector, Real4, value, 16)
#endif

// load4 and store4 need an index that is a multiple of 4, and a base that is aligned to four elements. element is a
// macro because a function would nest calls more deeply: see activate_gate.
#define element(base, index) ((base) + Address(Stride(index)) * kElementBytes)

INLINE Real load(Address base, Stride index) { return Scalar(element(base, index)).value; }
INLINE Real4 load4(Address base, Stride index) { return Vector(element(base, index)).value; }
INLINE void store(Address base, Stride index, Real value) { Scalar(element(base, index)).value = value; }
INLINE void store4(Address base, Stride index, Real4 run) { Vector(element(base, index)).value = run; }

// The same for tensor `tensor` of a kernel, which may be in a 16-bit type: see kStored. The number of the tensor
// should be a constant. These are macros where a function would nest calls more deeply: see activate_gate.
// fetch_tensor returns a number as it is in memory, and value_of converts it. A subgroup waits for a load when it first
// uses what was loaded, and a conversion is such a use. A step therefore fetches its inputs early, and converts them
// when it needs them.
#ifdef VKRNN_16BIT
#include "common/sixteen_bits.glsl"
#ifndef __cplusplus
#extension GL_EXT_shader_16bit_storage : require
#endif
SPECIALIZED(kStored, uint, stored_types, 0)
SPECIALIZED(kStoredHigh, uint, stored_types_high, 0)
CONSTANT bool stored_bfloat = (stored_types_high >> kStoredBfloat) != 0;
REFERENCE(SixteenBits, uint16_t, value, 2)
REFERENCE(SixteenBits4, uvec2, value, 8)

#define is_16bit(tensor) ((((tensor) < 32 ? stored_types : stored_types_high) >> ((tensor) & 31) & 1u) != 0)
#define tensor_bytes(tensor) (is_16bit(tensor) ? 2u : kElementBytes)
#define tensor_element(tensor, base, index) ((base) + Address(Stride(index)) * tensor_bytes(tensor))

INLINE Real4 widen_vec4(uvec2 pairs) {
    return Real4(widen(stored_bfloat, pairs.x & 0xffffu), widen(stored_bfloat, pairs.x >> 16),
                 widen(stored_bfloat, pairs.y & 0xffffu), widen(stored_bfloat, pairs.y >> 16));
}
#define Loaded uint
#define fetch_tensor(tensor, base, index)                                            \
    (is_16bit(tensor) ? uint(SixteenBits(tensor_element(tensor, base, index)).value) \
                      : floatBitsToUint(load(base, index)))
#define value_of(tensor, loaded) \
    (is_16bit(tensor) ? widen(stored_bfloat, loaded) : uintBitsToFloat(loaded))
#define load_tensor(tensor, base, index) value_of(tensor, fetch_tensor(tensor, base, index))
#define load4_tensor(tensor, base, index)                                                   \
    (is_16bit(tensor) ? widen_vec4(SixteenBits4(tensor_element(tensor, base, index)).value) \
                      : load4(base, index))
INLINE void store_tensor(uint tensor, Address base, Stride index, Real value) {
    if (is_16bit(tensor))
        SixteenBits(tensor_element(tensor, base, index)).value = uint16_t(narrow(stored_bfloat, value));
    else
        Scalar(element(base, index)).value = value;
}
INLINE void store4_tensor(uint tensor, Address base, Stride index, Real4 run) {
    if (is_16bit(tensor)) {
        uvec2 pairs;
        pairs.x = narrow(stored_bfloat, run.x) | narrow(stored_bfloat, run.y) << 16;
        pairs.y = narrow(stored_bfloat, run.z) | narrow(stored_bfloat, run.w) << 16;
        SixteenBits4(tensor_element(tensor, base, index)).value = pairs;
    } else {
        store4(base, index, run);
    }
}
#else
#define is_16bit(tensor) false
#define tensor_bytes(tensor) kElementBytes
#define tensor_element(tensor, base, index) element(base, index)
#define Loaded Real
#define fetch_tensor(tensor, base, index) load(base, index)
#define value_of(tensor, loaded) (loaded)
#define load_tensor(tensor, base, index) load(base, index)
#define load4_tensor(tensor, base, index) load4(base, index)
#define store_tensor(tensor, base, index, value) store(base, index, value)
#define store4_tensor(tensor, base, index, run) store4(base, index, run)
#endif

// Returns the linear index of this workgroup over x and y: see PlanBuilder::groups.
INLINE uint linear_group() { return gl_WorkGroupID.y * kGroupsInX + gl_WorkGroupID.x; }

#endif
