// The host memory that is still available. It limits CPU devices, whose drivers report more than there is.
#pragma once

#include <cstdint>

namespace vkrnn {

// Returns the available bytes: the least of MemAvailable in /proc/meminfo and what is left of the limits of the
// process's control groups and of the process itself (RLIMIT_AS, RLIMIT_DATA). UINT64_MAX if none can be read.
std::uint64_t host_memory_available();

}  // namespace vkrnn
