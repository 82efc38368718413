// Waits for other threads by spinning.
#pragma once

#include <chrono>

namespace vkrnn::cpu {

inline void pause_processor() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Spins for at most the time `most`. Returns whether the condition holds.
template <class Condition>
bool spin_until(const Condition& holds, std::chrono::steady_clock::duration most) {
    if (holds()) return true;
    const auto end = std::chrono::steady_clock::now() + most;
    do {
        for (int i = 0; i < 16; ++i) {
            if (holds()) return true;
            pause_processor();
        }
    } while (std::chrono::steady_clock::now() < end);
    return holds();
}

}  // namespace vkrnn::cpu
