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

// load4 needs an index that is a multiple of 4, and a base that is aligned to four elements.
INLINE Address element(Address base, Stride index) { return base + Address(index) * kElementBytes; }

INLINE Real load(Address base, Stride index) { return Scalar(element(base, index)).value; }
INLINE Real4 load4(Address base, Stride index) { return Vector(element(base, index)).value; }
INLINE void store(Address base, Stride index, Real value) { Scalar(element(base, index)).value = value; }

// Returns the linear index of this workgroup over x and y: see PlanBuilder::groups.
INLINE uint linear_group() { return gl_WorkGroupID.y * kGroupsInX + gl_WorkGroupID.x; }

#endif
