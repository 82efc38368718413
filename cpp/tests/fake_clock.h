// Clocks that only a test moves. Include it in one source of an executable.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <optional>

namespace vkrnn::test {

// Stands in for the steady clock and for the clocks of processor time during its lifetime. For each thread, its own
// readings take a tenth of a microsecond each, so that threads which spin for some time stop. All else is static,
// because the threads of a pool read clocks at any time.
class FakeClock {
public:
    using Duration = std::chrono::nanoseconds;

    FakeClock() {
        time_ = Duration(std::chrono::hours(1)).count();
        thread_time_ = process_time_ = 0;
        active_ = true;
    }
    ~FakeClock() { active_ = false; }
    FakeClock(const FakeClock&) = delete;
    FakeClock& operator=(const FakeClock&) = delete;

    // Lets this time pass, of which each thread has a processor for the time `used`, and all threads of the process
    // together for `used_by_all`.
    static void pass(Duration time, Duration used, Duration used_by_all) {
        time_ += time.count();
        thread_time_ += used.count();
        process_time_ += used_by_all.count();
    }
    static void pass(Duration time) { pass(time, time, time); }

    // Returns what a clock shows to the calling thread, or nothing if it is not replaced.
    static std::optional<Duration> read(clockid_t clock) {
        const std::atomic<Duration::rep>* const own = clock == CLOCK_MONOTONIC            ? &time_
                                                      : clock == CLOCK_THREAD_CPUTIME_ID  ? &thread_time_
                                                      : clock == CLOCK_PROCESS_CPUTIME_ID ? &process_time_
                                                                                          : nullptr;
        if (own == nullptr || !active_) return std::nullopt;
        static thread_local Duration::rep ahead = 0;
        const Duration shown(*own + (ahead += 100));
        if (readings != nullptr) ++*readings;
        return shown;
    }

    // Counts the calling thread's readings, if it is set.
    static inline thread_local std::atomic<unsigned>* readings = nullptr;

private:
    static inline std::atomic<bool> active_ = false;
    static inline std::atomic<Duration::rep> time_ = 0, thread_time_ = 0, process_time_ = 0;
};

}  // namespace vkrnn::test

// Replaces the C library's function, which std::chrono calls.
extern "C" __attribute__((visibility("default"))) int clock_gettime(clockid_t clock, timespec* time) noexcept {
    if (const auto shown = vkrnn::test::FakeClock::read(clock)) {
        constexpr auto kSecond = std::chrono::nanoseconds(std::chrono::seconds(1)).count();
        *time = {static_cast<time_t>(shown->count() / kSecond), static_cast<long>(shown->count() % kSecond)};
        return 0;
    }
    return syscall(SYS_clock_gettime, clock, time) == 0 ? 0 : -1;
}
