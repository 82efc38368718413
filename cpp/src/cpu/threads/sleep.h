// Waits until a number changes: first by spinning, then by sleeping in the operating system's kernel.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <thread>
#endif

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

// Sleeps while the word has this value, for at most the time `most`. May also wake up early without a reason.
inline void sleep_while(std::atomic<std::uint32_t>& word, std::uint32_t value, std::chrono::nanoseconds most) {
#ifdef __linux__
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(most);
    const timespec timeout{seconds.count(), (most - seconds).count()};
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, &timeout, nullptr, 0);
#else
    if (word.load() == value) std::this_thread::sleep_for(std::min(most, std::chrono::nanoseconds(50'000)));
#endif
}

inline void wake_all(std::atomic<std::uint32_t>& word) {
#ifdef __linux__
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 0x7fffffff, nullptr, nullptr, 0);
#else
    static_cast<void>(word);
#endif
}

}  // namespace vkrnn::cpu
