// The memory that the host can still give. It bounds CPU devices, whose drivers promise more than there is.
#pragma once

#include <cstdint>

namespace vkrnn {

// Returns bytes: MemAvailable of /proc/meminfo, or what the container's memory limit or a limit of the process
// (RLIMIT_AS, RLIMIT_DATA) leaves if that is less. UINT64_MAX if none can be read.
std::uint64_t host_memory_available();

}  // namespace vkrnn
