// Asks a caller's poll, which may run any code: signal handlers that fork the process, for example.
#pragma once

#include "vk/device/context.h"
#include "vkrnn/device.h"
#include "vkrnn/error.h"

namespace vkrnn::vk {

// Thrown in a child process that a poll has forked. The child must not use the device, not even wait for it, because it
// has none of the driver's threads.
struct Forked {};

// Throws Interrupted if the poll returns true, else Forked in a child that the poll has forked.
inline void ask(const Poll& poll) {
    if (!poll) return;
    const long process = process_id();
    if (poll()) throw Interrupted();
    if (process != process_id()) throw Forked();
}

}  // namespace vkrnn::vk
