// Detects whether other software uses the processors.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>

namespace vkrnn::cpu {

// An estimate of contention from the recent calls of the whole process that used several threads. If such calls lost
// more than half of their time waiting, other software must be using the processors. Contention is then assumed for a
// back-off period, which is quadrupled if it recurs soon. A single wait proves nothing, because threads are interrupted
// on a quiet machine too. The first period is short, because threads of other libraries spin for milliseconds after
// their work.
class Contention {
public:
    using Clock = std::chrono::steady_clock;
    using Duration = Clock::duration;

    [[nodiscard]] bool holds(Clock::time_point now = Clock::now()) const {
        return ticks(now) < until_.load(std::memory_order_relaxed);
    }

    // Returns whether contention was assumed within this time.
    [[nodiscard]] bool held_within(Duration time, Clock::time_point now = Clock::now()) const {
        const Rep until = until_.load(std::memory_order_relaxed);
        return until != 0 && ticks(now) < until + time.count();
    }

    // Returns whether recent calls show contention, including what the current call has taken so far.
    [[nodiscard]] bool shows(Duration lost, Duration taken) const {
        const Rep all_lost = lost_.load(std::memory_order_relaxed) + lost.count();
        return all_lost > kMuchLost.count() && 2 * all_lost > taken_.load(std::memory_order_relaxed) + taken.count();
    }

    // Adds the lost and the total time of a call.
    void add(Duration lost, Duration taken) {
        Rep all_lost = lost_.load(std::memory_order_relaxed) + lost.count();
        Rep all_taken = taken_.load(std::memory_order_relaxed) + taken.count();
        if (all_taken > kRemembered.count()) {
            all_lost /= 2;
            all_taken /= 2;
        }
        lost_.store(all_lost, std::memory_order_relaxed);
        taken_.store(all_taken, std::memory_order_relaxed);
    }

    // Starts a back-off period. Does nothing within one, because several teams of a call may notice the same
    // contention.
    void begin(Clock::time_point now) {
        lost_.store(0, std::memory_order_relaxed);
        taken_.store(0, std::memory_order_relaxed);
        Rep until = until_.load(std::memory_order_relaxed);
        if (ticks(now) < until) return;
        const Duration last(for_.load(std::memory_order_relaxed));
        const Rep soon = until + std::max<Duration>(last, kSoon).count();
        const Duration length = ticks(now) < soon ? std::clamp<Duration>(4 * last, kShortest, kLongest) : kShortest;
        if (until_.compare_exchange_strong(until, ticks(now + length), std::memory_order_relaxed))
            for_.store(length.count(), std::memory_order_relaxed);
    }

    // Forgets all earlier calls. For tests.
    void end() { lost_ = taken_ = until_ = for_ = 0; }

private:
    using Rep = Clock::rep;
    static constexpr Duration kMuchLost = std::chrono::milliseconds(10), kRemembered = std::chrono::milliseconds(100);
    static constexpr Duration kShortest = std::chrono::milliseconds(20), kLongest = std::chrono::milliseconds(1200);
    static constexpr Duration kSoon = std::chrono::milliseconds(300);
    static Rep ticks(Clock::time_point time) { return time.time_since_epoch().count(); }

    // Concurrent updates may be lost, which does no harm.
    std::atomic<Rep> lost_ = 0, taken_ = 0, until_ = 0, for_ = 0;
};

inline Contention pool_contention;    // calls on threads of the pool
inline Contention openmp_contention;  // calls on threads of an OpenMP library

}  // namespace vkrnn::cpu
