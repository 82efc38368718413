// The memory that the host can still give. It bounds CPU devices, whose drivers promise more than there is.
#pragma once

#include <cstdint>

namespace vkrnn {

// Bytes: MemAvailable of /proc/meminfo, or what the container's memory limit leaves if that is less.
// UINT64_MAX where neither can be read.
std::uint64_t host_memory_available();

}  // namespace vkrnn
