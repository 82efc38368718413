// Device memory by address. Alignment 4 is always right; the vec4 reference is for addresses that are multiples of 16.
#ifndef VKRNN_MEMORY_GLSL
#define VKRNN_MEMORY_GLSL
#extension GL_EXT_buffer_reference : require

#include "abi.h"

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Scalar { float value; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Vector { vec4 value; };

Address element(Address base, Stride index) { return base + Address(index) * kElementBytes; }

float load(Address base, Stride index) { return Scalar(element(base, index)).value; }
vec4 load4(Address base, Stride index) { return Vector(element(base, index)).value; }
void store(Address base, Stride index, float value) { Scalar(element(base, index)).value = value; }

// The linear number of this workgroup in x and y: more than 65,535 groups spread over y.
uint linear_group() { return gl_WorkGroupID.y * gl_NumWorkGroups.x + gl_WorkGroupID.x; }

#endif
