// Keeps the pipeline cache on disk. After any failure there is simply no cache.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

#include "vk/device/vulkan.h"

namespace vkrnn::vk {

// Returns the path of the cache file. Its name identifies device and driver, so that different ones do not overwrite
// each other's cache. Empty if there is no folder for caches.
std::filesystem::path cache_file(const PhysicalDeviceProperties& properties);

// Returns the file's contents if they are a pipeline cache of this device and driver, otherwise nothing. I/O errors do
// not throw.
std::vector<std::byte> read_cache(const std::filesystem::path& file, const PhysicalDeviceProperties& properties);

// Replaces the file atomically. Errors are ignored.
void write_cache(const std::filesystem::path& file, std::span<const std::uint8_t> data) noexcept;

}  // namespace vkrnn::vk
