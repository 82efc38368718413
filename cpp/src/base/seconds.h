// Measures how long something takes.
#pragma once

#include <chrono>

namespace vkrnn {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace vkrnn
