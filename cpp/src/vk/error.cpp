#include "error.h"

#include <array>
#include <cstdio>
#include <new>

#include "vulkan.h"

namespace vkrnn::vk {
namespace {

std::string with_commas(std::uint64_t value) {
    std::string digits = std::to_string(value);
    for (std::size_t at = digits.size(); at > 3;) {
        at -= 3;
        digits.insert(at, ",");
    }
    return digits;
}

// A driver that ran out of memory by itself does not say how much it wanted.
std::string memory_text(std::uint64_t asked, std::uint64_t free) {
    if (asked == 0) {
        return {};
    }
    return ": " + bytes_text(asked) + " asked, " + bytes_text(free) + " free";
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

void rethrow_translated(const std::string& prefix, std::uint64_t asked, std::uint64_t free) {
    try {
        throw;
    } catch (const Error&) {
        throw;
    } catch (const ::vk::DeviceLostError& error) {
        throw DeviceError(prefix + "the device was lost: " + error.what() + "; open a new vkrnn.Device");
    } catch (const ::vk::OutOfDeviceMemoryError&) {
        throw MemoryError(prefix + "the device is out of memory" + memory_text(asked, free), asked, free);
    } catch (const ::vk::OutOfHostMemoryError&) {
        throw MemoryError(prefix + "the driver is out of host memory" + memory_text(asked, free), asked, free);
    } catch (const std::bad_alloc&) {
        throw MemoryError(prefix + "out of host memory" + memory_text(asked, free), asked, free);
    } catch (const ::vk::Error& error) {
        throw DeviceError(prefix + "the driver reported an error: " + error.what());
    } catch (const std::logic_error& error) {
        throw Error(prefix + "internal error: " + error.what());
    }
    // Whatever else there is (an exception of the caller's poll, say) passes through.
}

bool is_device_lost() {
    try {
        throw;
    } catch (const ::vk::DeviceLostError&) {
        return true;
    } catch (...) {
        return false;
    }
}

}  // namespace vkrnn::vk
