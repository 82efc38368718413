// Keeps the pipeline cache on disk. After any failure, the cache is empty.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <vector>

#include "vk/device/vulkan.h"

namespace vkrnn::vk {

// Returns the path of the cache file, or an empty one if there is no cache folder. The file's name identifies device
// and driver, so that they do not overwrite each other's caches.
std::filesystem::path cache_file(const PhysicalDeviceProperties& properties);

// Returns the file's contents if they are a pipeline cache of this device and driver, else nothing. Does not throw on
// I/O errors.
std::vector<std::byte> read_cache(const std::filesystem::path& file, const PhysicalDeviceProperties& properties);

// Replaces the file atomically. Errors are ignored.
void write_cache(const std::filesystem::path& file, std::span<const std::uint8_t> data) noexcept;

}  // namespace vkrnn::vk
