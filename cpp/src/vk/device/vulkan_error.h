// Translates Vulkan-Hpp's exceptions into the project's. This is the only place that does so.
#pragma once

#include <cstdint>
#include <string>

#include "base/messages.h"
#include "vkrnn/error.h"

namespace vkrnn::vk {

// Rethrows the current exception. The project's own stay as they are. Vulkan-Hpp's and the standard library's become a
// DeviceError, a MemoryError (with `asked` and `free` bytes) or an Error whose message begins with `prefix`. Call it
// only inside a catch block.
[[noreturn]] void rethrow_translated(const std::string& prefix, std::uint64_t asked = 0, std::uint64_t free = 0);

// Returns whether the current exception means that the device was lost. Call it only inside a catch block.
bool is_device_lost();

}  // namespace vkrnn::vk
