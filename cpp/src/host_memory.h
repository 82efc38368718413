// The memory that the host can still give. It bounds CPU devices, whose drivers promise more than there is.
#pragma once

#include <cstdint>

namespace vkrnn {

// Returns bytes: MemAvailable of /proc/meminfo, or what the limits of the process's control groups or of the process
// itself (RLIMIT_AS, RLIMIT_DATA) leave if that is less. UINT64_MAX if none can be read.
std::uint64_t host_memory_available();

}  // namespace vkrnn
