// Conversion between float32 and the 16-bit types. Included once for each instruction set.
#if defined(VKRNN_CPU_CONVERT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef VKRNN_CPU_CONVERT_INL_H
#undef VKRNN_CPU_CONVERT_INL_H
#else
#define VKRNN_CPU_CONVERT_INL_H
#endif

#include <bit>

#include "product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vkrnn::cpu::HWY_NAMESPACE {

// Where the processor has instructions for float16, Highway's conversion has the same bits as the functions below and
// is faster. Elsewhere Highway 1.0 does not keep infinities, and it always cuts bfloat16 off instead of rounding it.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
inline constexpr bool kConvertsHalves = true;
#else
inline constexpr bool kConvertsHalves = false;
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

inline void widen_halves(const std::uint16_t* in, float* out, std::int64_t count) {
    std::int64_t i = 0;
    if constexpr (kConvertsHalves) {
        const Tag<float> d;
        const hn::Rebind<hwy::float16_t, Tag<float>> half;
        for (; i + kLanes<float> <= count; i += kLanes<float>)
            hn::StoreU(hn::PromoteTo(d, hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(in + i))), d, out + i);
    }
    for (; i < count; ++i) out[i] = from_half(in[i]);
}

inline void narrow_to_halves(const float* in, std::uint16_t* out, std::int64_t count) {
    std::int64_t i = 0;
    if constexpr (kConvertsHalves) {
        const Tag<float> d;
        const hn::Rebind<hwy::float16_t, Tag<float>> half;
        for (; i + kLanes<float> <= count; i += kLanes<float>)
            hn::StoreU(hn::DemoteTo(half, hn::LoadU(d, in + i)), half, reinterpret_cast<hwy::float16_t*>(out + i));
    }
    for (; i < count; ++i) out[i] = to_half(in[i]);
}

inline void convert(const ConvertWork& work, Member& member) {
    const auto [begin, end] = part_of(work.count, member.rank(), member.size());
    if (work.narrow != 0) {
        const auto* const in = pointer<const float>(work.in);
        auto* const out = pointer<std::uint16_t>(work.out);
        if (work.bfloat == 0) return narrow_to_halves(in + begin, out + begin, end - begin);
        for (std::int64_t i = begin; i < end; ++i) out[i] = to_bfloat(in[i]);
    } else {
        const auto* const in = pointer<const std::uint16_t>(work.in);
        auto* const out = pointer<float>(work.out);
        if (work.bfloat == 0) return widen_halves(in + begin, out + begin, end - begin);
        for (std::int64_t i = begin; i < end; ++i) out[i] = from_bfloat(in[i]);
    }
}

}  // namespace vkrnn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
