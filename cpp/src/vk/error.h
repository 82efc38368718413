// The wording of errors, and the one place where Vulkan-Hpp's exceptions become the project's.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "vkrnn/error.h"

namespace vkrnn::vk {

// How a message about a call begins: "[lstm] " for "lstm" and for "[lstm]"; nothing where the label is empty.
std::string error_prefix(std::string_view label);

// "34.4 GiB (36,893,488,128 bytes)"; below 1 KiB just "12 bytes".
std::string bytes_text(std::uint64_t bytes);

// Rethrows the exception being handled: the project's own as they are, Vulkan-Hpp's and the standard library's as
// DeviceError, MemoryError (with `asked` and `free` bytes) or Error whose message begins with `prefix`.
// Call it only inside a catch block.
[[noreturn]] void rethrow_translated(const std::string& prefix, std::uint64_t asked = 0, std::uint64_t free = 0);

// Whether the exception being handled says that the device was lost. Call it only inside a catch block.
bool is_device_lost();

}  // namespace vkrnn::vk
