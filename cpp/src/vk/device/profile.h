// What a physical device is and can do.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "vk/device/vulkan.h"
#include "vkrnn/profile.h"

namespace vkrnn::vk {

// Why the device cannot be used here ("Vulkan 1.2 only"); nothing if it can.
std::optional<std::string> unusable(const raii::PhysicalDevice& physical);

// Only for devices that can be used: it reads properties of Vulkan 1.3.
Profile read_profile(const raii::PhysicalDevice& physical);

bool has_extension(const raii::PhysicalDevice& physical, const char* wanted);

// The first queue family that computes.
std::optional<std::uint32_t> compute_family(const raii::PhysicalDevice& physical);

// The first queue family that does nothing but transfers.
std::optional<std::uint32_t> transfer_family(const raii::PhysicalDevice& physical);

// The first memory type with all of `wanted`.
std::optional<std::uint32_t> memory_type(const PhysicalDeviceMemoryProperties& memory, MemoryPropertyFlags wanted);

// Memory that is the device's own and that the host reads and writes at full speed.
inline constexpr MemoryPropertyFlags kUnifiedMemory =
    MemoryPropertyFlagBits::eDeviceLocal | MemoryPropertyFlagBits::eHostVisible |
    MemoryPropertyFlagBits::eHostCoherent | MemoryPropertyFlagBits::eHostCached;

}  // namespace vkrnn::vk
