// Returns the id of this process. Devices do not survive a fork.
#pragma once

#ifdef _WIN32
#include <process.h>
#else
#include <unistd.h>
#endif

namespace vkrnn {

inline long process_id() {
#ifdef _WIN32
    return _getpid();
#else
    return getpid();
#endif
}

}  // namespace vkrnn
