// Loads and stores by device address, in elements of the kernel's type.
#ifndef VKRNN_MEMORY_GLSL
#define VKRNN_MEMORY_GLSL
#extension GL_EXT_buffer_reference : require

#include "abi.h"
#include "real.glsl"

#ifdef VKRNN_FLOAT64
const uint kElementBytes = 8;
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Scalar { Real value; };
layout(buffer_reference, std430, buffer_reference_align = 32) buffer Vector { Real4 value; };
#else
const uint kElementBytes = 4;
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Scalar { Real value; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Vector { Real4 value; };
#endif

// load4 needs an index that is a multiple of 4, and a base that is aligned to four elements.
Address element(Address base, Stride index) { return base + Address(index) * kElementBytes; }

Real load(Address base, Stride index) { return Scalar(element(base, index)).value; }
Real4 load4(Address base, Stride index) { return Vector(element(base, index)).value; }
void store(Address base, Stride index, Real value) { Scalar(element(base, index)).value = value; }

// Returns the linear index of this workgroup over x and y: see PlanBuilder::groups.
uint linear_group() { return gl_WorkGroupID.y * kGroupsInX + gl_WorkGroupID.x; }

#endif
