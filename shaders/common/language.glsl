// The language that every kernel is written in: GLSL, with the words below for what C++ spells in another way. So
// glslang compiles a kernel for Vulkan, and a C++ compiler for CUDA compiles the same file as the members of a class.
// Beyond these words, a kernel
//   - gives every literal of a float its `f`, as C++ needs it;
//   - names arrays, never their values: C++ can neither assign nor return them. Parameters that are arrays are `out` or
//     `inout` if the function writes them; C++ passes every array by reference;
//   - may call functions that follow below, once they are declared.
//
//   CONSTANT                                const, for a constant of the kernel outside of functions
//   SPECIALIZED(id, type, name, value)      a specialization constant, with its default
//   WORKGROUP_SIZE(n), ..._ID(id)           the invocations of a workgroup: a number, or a specialization constant
//   PUSH_CONSTANTS(type, name)              the struct of abi.h that a dispatch is given
//   REFERENCE(name, type, member, bytes)    name(address).member is the `type` at an address that is a multiple of
//                                           `bytes`. READONLY_ is not stored to, VOLATILE_ is loaded each time, ARRAY_
//                                           is an array of unknown length, GENERIC_ may be slower in CUDA: see glsl.cuh
//   PARAMETERS(name, type)                  parameters that stay the same during a dispatch: a uniform buffer in Vulkan,
//                                           an argument of the kernel in CUDA. params_of(p) is the struct, and p is
//                                           name(address)
//   SHARED(type, name)                      memory that a workgroup shares; SHARED_ARRAY(type, name, [size]) an array.
//                                           LAUNCH_SHARED_ARRAY, of which a kernel has one, may be larger than what a
//                                           kernel declares in CUDA: see Dispatch::launch_shared_memory
//   INLINE                                  before each function but main
//   DECLARE(function)                       declares a function that is defined below
//   OUT(type) name, INOUT(type) name        parameters that are not arrays
//   COPY(to, from)                          copies an array
//   UNROLL                                  before a loop that must be unrolled
//   reciprocal(x)                           1 / x of a float, as fast as the device has it
#ifndef VKRNN_LANGUAGE_GLSL
#define VKRNN_LANGUAGE_GLSL
#ifdef __CUDACC__
#include "cuda/language.cuh"
#else
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require

#define CONSTANT const
#define SPECIALIZED(id, type, name, value) layout(constant_id = id) const type name = value;
#define WORKGROUP_SIZE(n) layout(local_size_x = n) in;
#define WORKGROUP_SIZE_ID(id) layout(local_size_x_id = id) in;
#define PUSH_CONSTANTS(type, name) layout(push_constant, std430) uniform Push { type name; };
#define REFERENCE_LAYOUT(bytes) layout(buffer_reference, std430, buffer_reference_align = bytes)
#define REFERENCE(name, type, member, bytes) REFERENCE_LAYOUT(bytes) buffer name { type member; };
#define READONLY_REFERENCE(name, type, member, bytes) REFERENCE_LAYOUT(bytes) readonly buffer name { type member; };
#define VOLATILE_REFERENCE(name, type, member, bytes) REFERENCE_LAYOUT(bytes) volatile buffer name { type member; };
#define GENERIC_REFERENCE(name, type, member, bytes) REFERENCE(name, type, member, bytes)
#define ARRAY_REFERENCE(name, type, member, bytes) REFERENCE_LAYOUT(bytes) buffer name { type member[]; };
#define PARAMETERS(name, type)                                                    \
    layout(set = 0, binding = 0, std430) uniform Parameters { type parameters; }; \
    struct name { Address at; };
#define params_of(p) parameters
#define SHARED(type, name) shared type name;
#define SHARED_ARRAY(type, name, size) shared type name size;
#define LAUNCH_SHARED_ARRAY SHARED_ARRAY
#define INLINE
#define DECLARE(function) function;
#define OUT(type) out type
#define INOUT(type) inout type
#define COPY(to, from) to = from
#define UNROLL [[unroll]]
#define reciprocal(x) (1.0f / (x))
#endif
#endif
