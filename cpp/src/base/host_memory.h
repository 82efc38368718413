// The host memory that is still available. It limits CPU devices, whose drivers report more than there is.
#pragma once

#include <cstdint>

namespace vkrnn {

// Returns the available bytes: what the system and what the process's control groups leave, whichever is less.
// UINT64_MAX if neither can be read.
std::uint64_t host_memory_available();

}  // namespace vkrnn
