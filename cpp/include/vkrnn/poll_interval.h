// How often calls ask their poll.
#pragma once

#include <atomic>
#include <chrono>

namespace vkrnn {

// The least time between two polls of a call. Tests set it to 0. Calls then poll after each piece of work and at each
// wait, even if nothing is left to wait for, so that no test depends on how long work takes.
inline constexpr std::chrono::nanoseconds kPollInterval = std::chrono::milliseconds(20);
inline std::atomic<std::chrono::nanoseconds> poll_interval = kPollInterval;

}  // namespace vkrnn
