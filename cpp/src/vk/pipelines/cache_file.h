// The pipeline cache on disk. Every failure is as if there were no cache.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

#include "vk/device/vulkan.h"

namespace vkrnn::vk {

// Names the device and driver, so that devices and releases do not overwrite each other's. Empty where there is no
// folder for caches.
std::filesystem::path cache_file(const PhysicalDeviceProperties& properties);

// The file's contents if they are a pipeline cache of this device and driver; else nothing. Never throws for I/O.
std::vector<std::byte> read_cache(const std::filesystem::path& file, const PhysicalDeviceProperties& properties);

// Replaces the file in one step. Errors are ignored.
void write_cache(const std::filesystem::path& file, std::span<const std::uint8_t> data) noexcept;

}  // namespace vkrnn::vk
