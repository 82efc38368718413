// Clocks of the processor time that a thread or the whole process has used.
#pragma once

#include <chrono>
#include <ctime>
#include <optional>

namespace vkrnn::cpu {

// Returns what the clock shows, or nothing if its thread has ended.
inline std::optional<std::chrono::nanoseconds> processor_time(clockid_t clock) {
    timespec time{};
    if (clock_gettime(clock, &time) != 0) return std::nullopt;
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace vkrnn::cpu
