#include "messages.h"

#include <array>
#include <cstdio>

namespace vkrnn {
namespace {

std::string with_commas(std::uint64_t value) {
    std::string digits = std::to_string(value);
    for (std::size_t at = digits.size(); at > 3;) {
        at -= 3;
        digits.insert(at, ",");
    }
    return digits;
}

}  // namespace

std::string error_prefix(std::string_view label) {
    if (label.empty()) {
        return {};
    }
    return label.front() == '[' ? std::string(label) + ' ' : '[' + std::string(label) + "] ";
}

std::string bytes_text(std::uint64_t bytes) {
    constexpr std::array<const char*, 5> kUnits{"KiB", "MiB", "GiB", "TiB", "PiB"};
    if (bytes < 1024) {
        return std::to_string(bytes) + " bytes";
    }
    double value = static_cast<double>(bytes) / 1024;
    std::size_t unit = 0;
    while (value >= 1024 && unit + 1 < kUnits.size()) {
        value /= 1024;
        ++unit;
    }
    std::array<char, 32> number{};
    std::snprintf(number.data(), number.size(), "%.1f ", value);
    return number.data() + std::string(kUnits[unit]) + " (" + with_commas(bytes) + " bytes)";
}

}  // namespace vkrnn
