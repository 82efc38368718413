// What C++ and the kernels share: structs, and the numbers of specialization constants. Both compilers read this file,
// step_abi.h, and one for each strategy in its folder. Structs put 8-byte members first and contain no vectors, so that
// std430 and C++ give them the same layout. Buffer references come before all other members, as make_block in
// vkrnn/plan.h needs.
#ifndef VKRNN_ABI_H
#define VKRNN_ABI_H

#ifndef __cplusplus
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#define Address uint64_t
#define Stride int64_t
#elif defined(__CUDACC__)
namespace vkrnn::abi {
using uint = unsigned int;
using Address = unsigned long long;
using Stride = long long;
#else
#include <array>
#include <bit>
#include <cstdint>
namespace vkrnn::abi {
using uint = std::uint32_t;
using Address = std::uint64_t;   // a device address; in a plan, a buffer reference (BufferReference)
using Stride = std::int64_t;     // in elements
#endif

// Activations, as in MPSGraphRNNActivation.
const uint kNone = 0u;
const uint kRelu = 1u;
const uint kTanh = 2u;
const uint kSigmoid = 3u;
const uint kHardSigmoid = 4u;

// Workgroups along x in a dispatch that also uses y. Every Vulkan device supports this many.
const uint kGroupsInX = 65535u;

// Invocations per workgroup of kernels that compute each element by itself.
const uint kElementwiseGroup = 64u;

// Kernels of calls in a 16-bit type are built with VKRNN_16BIT. Their tensors are stored in that type or in float32, as
// this specialization constant and the next one say, the low and the high word of a number: its bit i is 1 if tensor i
// is in the 16-bit type. A kernel's struct says which tensors have which numbers; in step kernels they are the views.
const uint kStored = 61u;
const uint kStoredHigh = 62u;
const uint kStoredBfloat = 31u;   // this bit of the high word is 1 if the type is bfloat16, and 0 if it is float16

#ifdef __cplusplus
#ifndef __CUDACC__
// Splits a number into two words, the low one first. A float is the first word alone.
constexpr std::array<uint, 2> to_words(float number) { return {std::bit_cast<uint>(number), 0}; }
constexpr std::array<uint, 2> to_words(double number) { return std::bit_cast<std::array<uint, 2>>(number); }
template <class T>
constexpr T from_words(const uint* words) {
    if constexpr (sizeof(T) == sizeof(double)) return std::bit_cast<T>(std::array{words[0], words[1]});
    else return std::bit_cast<T>(words[0]);
}
#endif
}  // namespace vkrnn::abi
#endif
#endif
