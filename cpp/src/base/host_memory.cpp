#include "host_memory.h"

#include <algorithm>

#include "control_groups.h"
#include "system.h"

namespace vkrnn {

std::uint64_t host_memory_available() {
    return std::min(system::available_memory(), ControlGroups().memory_available());
}

}  // namespace vkrnn
