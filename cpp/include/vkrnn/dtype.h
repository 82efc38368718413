// The floating-point types of a call's tensors, and the precision of float32 products. All tensors of a call have the
// same type.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace vkrnn {

// float16 and bfloat16 are storage types. A call converts its inputs to float32 at its start and its results back at
// its end. Everything in between, including sums and the carried state, is float32. float64 is float64 throughout.
enum class Dtype : std::uint8_t { float32, float64, float16, bfloat16 };
inline constexpr std::array kDtypes{Dtype::float32, Dtype::float64, Dtype::float16, Dtype::bfloat16};

constexpr std::string_view name_of(Dtype dtype) {
    switch (dtype) {
        case Dtype::float32: return "float32";
        case Dtype::float64: return "float64";
        case Dtype::float16: return "float16";
        case Dtype::bfloat16: return "bfloat16";
    }
    return "";
}

// How matrix units multiply float32 numbers. ieee: with the accuracy of float32. tf32: operands may be rounded to ten
// mantissa bits, as in NVIDIA's TF32; sums and everything else are float32. The names are PyTorch's.
enum class Precision : std::uint8_t { ieee, tf32 };
inline constexpr std::array kPrecisions{Precision::ieee, Precision::tf32};

constexpr std::string_view name_of(Precision precision) { return precision == Precision::tf32 ? "tf32" : "ieee"; }

constexpr bool is_half(Dtype dtype) { return dtype == Dtype::float16 || dtype == Dtype::bfloat16; }

// Return the bytes of an element: in the caller's arrays, and while a call computes.
constexpr std::uint64_t storage_bytes(Dtype dtype) { return is_half(dtype) ? 2 : dtype == Dtype::float64 ? 8 : 4; }
constexpr std::uint64_t compute_bytes(Dtype dtype) { return dtype == Dtype::float64 ? 8 : 4; }

}  // namespace vkrnn
