// Reads the properties of a physical device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "vk/device/vulkan.h"
#include "vkrnn/profile.h"

namespace vkrnn::vk {

// Returns why the device cannot be used here, such as "no compute queue"; nothing if it can.
std::optional<std::string> unusable(const raii::PhysicalDevice& physical);

DeviceType device_type(PhysicalDeviceType type);

// The device must be usable, since this reads properties of Vulkan 1.3.
Profile read_profile(const raii::PhysicalDevice& physical);

bool has_extension(const raii::PhysicalDevice& physical, const char* wanted);

// Returns whether a pipeline can require this subgroup size.
bool can_fix_subgroup_size(const raii::PhysicalDevice& physical, std::uint32_t size);

// Returns a queue family with compute. Prefers one without graphics, which starts the next submission sooner: by 6 us
// on an H200.
std::optional<std::uint32_t> compute_family(const raii::PhysicalDevice& physical);

// Returns the first queue family that has only transfers.
std::optional<std::uint32_t> transfer_family(const raii::PhysicalDevice& physical);

// Returns the first memory type whose bit is set in `possible` and that has all properties in `wanted`.
std::optional<std::uint32_t> memory_type(const PhysicalDeviceMemoryProperties& memory, MemoryPropertyFlags wanted,
                                         std::uint32_t possible = ~0U);

// Returns whether arrays can be in memory that both device and host use in place, at full speed. A discrete device may
// let the host map its memory too, but reading through the bus is slower than copying. Some integrated devices have no
// memory that is both coherent and cached; it is copied there as well.
bool has_unified_memory(DeviceType type, const PhysicalDeviceMemoryProperties& memory);
inline constexpr MemoryPropertyFlags kUnifiedMemory =
    MemoryPropertyFlagBits::eDeviceLocal | MemoryPropertyFlagBits::eHostVisible |
    MemoryPropertyFlagBits::eHostCoherent | MemoryPropertyFlagBits::eHostCached;

}  // namespace vkrnn::vk
