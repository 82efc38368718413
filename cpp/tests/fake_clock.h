// Clocks that only a test moves. Include it in one source of an executable.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>

#if defined(_WIN32)
#define NOMINMAX
#include <windows.h>
#elif defined(__APPLE__)
#include <ctime>
#else
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>
#endif

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

    enum class Kind { steady, thread, process };

    // Returns what a clock shows to the calling thread, or nothing if the object does not live.
    static std::optional<Duration> read(Kind clock) {
        if (!active_) return std::nullopt;
        const auto& own = clock == Kind::steady ? time_ : clock == Kind::thread ? thread_time_ : process_time_;
        static thread_local Duration::rep ahead = 0;
        const Duration shown(own + (ahead += 100));
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

#ifdef _WIN32

// Replaces the system's function, which std::chrono calls through this pointer. system::thread_time() is the steady
// clock, and system::process_time() is not replaced.
extern "C" BOOL WINAPI read_fake_clock(LARGE_INTEGER* count) {
    using Query = BOOL(WINAPI*)(LARGE_INTEGER*);
    static const auto real =
        reinterpret_cast<Query>(GetProcAddress(GetModuleHandleA("kernel32"), "QueryPerformanceCounter"));
    const auto shown = vkrnn::test::FakeClock::read(vkrnn::test::FakeClock::Kind::steady);
    if (!shown) return real(count);
    LARGE_INTEGER a_second;
    QueryPerformanceFrequency(&a_second);
    count->QuadPart = shown->count() / (1'000'000'000 / a_second.QuadPart);
    return TRUE;
}
extern "C" BOOL(WINAPI* const __imp_QueryPerformanceCounter)(LARGE_INTEGER*) = read_fake_clock;

#else

#ifdef __APPLE__
inline constexpr clockid_t kSteadyClock = CLOCK_MONOTONIC_RAW;
inline int read_real_clock(clockid_t clock, timespec* time) {
    const auto nanoseconds = clock_gettime_nsec_np(clock);
    *time = {static_cast<time_t>(nanoseconds / 1'000'000'000), static_cast<long>(nanoseconds % 1'000'000'000)};
    return 0;
}
#else
inline constexpr clockid_t kSteadyClock = CLOCK_MONOTONIC;
inline int read_real_clock(clockid_t clock, timespec* time) {
    return syscall(SYS_clock_gettime, clock, time) == 0 ? 0 : -1;
}
#endif

// Replaces the C library's function, which std::chrono calls. Its exceptions are specified as in the system's header.
extern "C" __attribute__((visibility("default"))) int clock_gettime(clockid_t clock, timespec* time) noexcept(
    noexcept(clock_gettime(clock, time))) {
    using vkrnn::test::FakeClock;
    std::optional<FakeClock::Duration> shown;
    if (clock == kSteadyClock) shown = FakeClock::read(FakeClock::Kind::steady);
    if (clock == CLOCK_THREAD_CPUTIME_ID) shown = FakeClock::read(FakeClock::Kind::thread);
    if (clock == CLOCK_PROCESS_CPUTIME_ID) shown = FakeClock::read(FakeClock::Kind::process);
    if (!shown) return read_real_clock(clock, time);
    constexpr auto kSecond = std::chrono::nanoseconds(std::chrono::seconds(1)).count();
    *time = {static_cast<time_t>(shown->count() / kSecond), static_cast<long>(shown->count() % kSecond)};
    return 0;
}

#endif
