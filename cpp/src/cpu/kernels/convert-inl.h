// Conversion between float32 and the 16-bit types. Compiled for each instruction set.
#pragma once

#include <algorithm>
#include <array>
#include <bit>

#include "product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vkrnn::cpu::HWY_NAMESPACE {

// Where the processor has instructions for float16, Highway's conversion has the same bits as the functions below and
// is faster. Elsewhere Highway 1.0 does not keep infinities, and it always cuts bfloat16 off instead of rounding it.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
inline constexpr bool kConvertsFloat16 = true;
#else
inline constexpr bool kConvertsFloat16 = false;
#endif

HWY_INLINE float from_half(std::uint16_t half) {
    const std::uint32_t rest = static_cast<std::uint32_t>(half & 0x7fffU) << 13;
    // The multiplication normalizes subnormal numbers, which a half stores without a leading one.
    const float scaled = std::bit_cast<float>(rest) * std::bit_cast<float>(0x77800000U);  // 2^112
    std::uint32_t bits = rest >= 0x0f800000U ? rest | 0x7f800000U : std::bit_cast<std::uint32_t>(scaled);
    bits = rest > 0x0f800000U ? bits | 0x400000U : bits;  // NaN becomes quiet
    return std::bit_cast<float>(bits | static_cast<std::uint32_t>(half & 0x8000U) << 16);
}

// Rounds to the nearest value, ties to even.
HWY_INLINE std::uint16_t to_half(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t size = bits & 0x7fffffffU;
    const std::uint32_t rounded = (size - 0x38000000U + 0xfffU + (size >> 13 & 1U)) >> 13;
    // Adding 0.5 shifts the bits of a small number to where a half stores them, and rounds.
    const std::uint32_t small = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0.5F) - 0x3f000000U;
    std::uint32_t half = size < 0x38800000U ? small : rounded;
    half = size >= 0x477ff000U ? 0x7c00U : half;
    half = size > 0x7f800000U ? 0x7e00U | (size >> 13 & 0x3ffU) : half;
    return static_cast<std::uint16_t>(half | (bits >> 16 & 0x8000U));
}

HWY_INLINE std::uint16_t to_bfloat(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;
    return static_cast<std::uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? (bits >> 16 | 0x40U) : rounded);
}

HWY_INLINE float from_bfloat(std::uint16_t value) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

using HalfTag = hn::Rebind<hwy::float16_t, Tag<float>>;

HWY_INLINE void widen_vector(const std::uint16_t* in, float* out) {
    const Tag<float> d;
    hn::StoreU(hn::PromoteTo(d, hn::LoadU(HalfTag(), reinterpret_cast<const hwy::float16_t*>(in))), d, out);
}

HWY_INLINE void narrow_vector(const float* in, std::uint16_t* out) {
    hn::StoreU(hn::DemoteTo(HalfTag(), hn::LoadU(Tag<float>(), in)), HalfTag(), reinterpret_cast<hwy::float16_t*>(out));
}

// Converts with a function of whole vectors. The rest goes through it, too: it ignores how the processor is set to
// round and to treat subnormal numbers, and other instructions do not.
template <auto kConvertVector, class In, class Out>
HWY_INLINE void convert_vectors(const In* in, Out* out, std::int64_t count) {
    std::int64_t i = 0;
    for (; i + kLanes<float> <= count; i += kLanes<float>) kConvertVector(in + i, out + i);
    if (i == count) return;
    std::array<In, kLanes<float>> padded{};
    std::array<Out, kLanes<float>> converted;
    std::copy(in + i, in + count, padded.begin());
    kConvertVector(padded.data(), converted.data());
    std::copy_n(converted.begin(), count - i, out + i);
}

inline void widen_float16(const std::uint16_t* in, float* out, std::int64_t count) {
    if constexpr (kConvertsFloat16) return convert_vectors<widen_vector>(in, out, count);
    for (std::int64_t i = 0; i < count; ++i) out[i] = from_half(in[i]);
}

inline void narrow_to_float16(const float* in, std::uint16_t* out, std::int64_t count) {
    if constexpr (kConvertsFloat16) return convert_vectors<narrow_vector>(in, out, count);
    for (std::int64_t i = 0; i < count; ++i) out[i] = to_half(in[i]);
}

// Makes the factors of resets from bytes: 0 where one is not 0, else 1.
template <class T>
void factors(const ConvertWork& work, Member& member) {
    const auto [begin, end] = part_of(work.count, member.rank(), member.size());
    const auto* const in = pointer<const std::uint8_t>(work.in);
    auto* const out = pointer<T>(work.out);
    for (std::int64_t i = begin; i < end; ++i) out[i] = in[i] != 0 ? T{0} : T{1};
}

inline void convert(const ConvertWork& work, Member& member) {
    const auto [begin, end] = part_of(work.count, member.rank(), member.size());
    if (work.narrow != 0) {
        const auto* const in = pointer<const float>(work.in);
        auto* const out = pointer<std::uint16_t>(work.out);
        if (work.bfloat == 0) return narrow_to_float16(in + begin, out + begin, end - begin);
        for (std::int64_t i = begin; i < end; ++i) out[i] = to_bfloat(in[i]);
    } else {
        const auto* const in = pointer<const std::uint16_t>(work.in);
        auto* const out = pointer<float>(work.out);
        if (work.bfloat == 0) return widen_float16(in + begin, out + begin, end - begin);
        for (std::int64_t i = begin; i < end; ++i) out[i] = from_bfloat(in[i]);
    }
}

}  // namespace vkrnn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
