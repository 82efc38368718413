// Reads what a physical device is and can do.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "vk/device/vulkan.h"
#include "vkrnn/profile.h"

namespace vkrnn::vk {

// Returns why the device cannot be used here ("no compute queue"); nothing if it can.
std::optional<std::string> unusable(const raii::PhysicalDevice& physical);

DeviceType device_type(PhysicalDeviceType type);

// The device must be usable, since this reads properties of Vulkan 1.3.
Profile read_profile(const raii::PhysicalDevice& physical);

bool has_extension(const raii::PhysicalDevice& physical, const char* wanted);

// Returns the first queue family that computes.
std::optional<std::uint32_t> compute_family(const raii::PhysicalDevice& physical);

// Returns the first queue family that does nothing but transfers.
std::optional<std::uint32_t> transfer_family(const raii::PhysicalDevice& physical);

// Returns the first memory type with all the properties in `wanted` whose bit is set in `possible`.
std::optional<std::uint32_t> memory_type(const PhysicalDeviceMemoryProperties& memory, MemoryPropertyFlags wanted,
                                         std::uint32_t possible = ~0U);

// The properties of device-local memory that the host reads and writes at full speed.
inline constexpr MemoryPropertyFlags kUnifiedMemory =
    MemoryPropertyFlagBits::eDeviceLocal | MemoryPropertyFlagBits::eHostVisible |
    MemoryPropertyFlagBits::eHostCoherent | MemoryPropertyFlagBits::eHostCached;

}  // namespace vkrnn::vk
