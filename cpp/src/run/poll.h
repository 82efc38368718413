// Calls the caller's poll. It may run any code, such as signal handlers that fork the process.
#pragma once

#include "base/system.h"
#include "vkrnn/device.h"
#include "vkrnn/error.h"

namespace vkrnn {

// Thrown in a child process that a poll has forked. The child has none of the driver's threads, so it must not use the
// device, nor wait for it.
struct Forked {};

// Throws Interrupted if the poll returns true, and Forked in a child that the poll has forked.
inline void ask(const Poll& poll) {
    if (!poll) return;
    const long process = system::process_id();
    if (poll()) throw Interrupted();
    if (process != system::process_id()) throw Forked();
}

}  // namespace vkrnn
