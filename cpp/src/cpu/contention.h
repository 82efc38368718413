// Whether somebody else has the processors.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>

namespace vkrnn::cpu {

// What calls of several threads took of late, in the whole process. Where more than half of it is lost, somebody else
// must have the processors; that is then taken to be so for a while, and where it turns out to be so again soon after
// that, for four times as long. A single wait says nothing: threads are interrupted on a quiet machine too. The first
// while is short, because threads of other libraries spin for milliseconds when their work is done.
class Contention {
public:
    using Clock = std::chrono::steady_clock;
    using Duration = Clock::duration;

    [[nodiscard]] bool holds(Clock::time_point now = Clock::now()) const {
        return ticks(now) < until_.load(std::memory_order_relaxed);
    }

    // Whether it has been so lately.
    [[nodiscard]] bool held_within(Duration time, Clock::time_point now = Clock::now()) const {
        const Rep until = until_.load(std::memory_order_relaxed);
        return until != 0 && ticks(now) < until + time.count();
    }

    // Whether it is so, with what the call under way has taken.
    [[nodiscard]] bool shows(Duration lost, Duration taken) const {
        const Rep all_lost = lost_.load(std::memory_order_relaxed) + lost.count();
        return all_lost > kMuchLost.count() && 2 * all_lost > taken_.load(std::memory_order_relaxed) + taken.count();
    }

    // To be called with what a call took.
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

    // Several teams of a call may notice the same: while it holds already, it is not for longer.
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

    // Forgets what calls took. For tests.
    void end() { lost_ = taken_ = until_ = for_ = 0; }

private:
    using Rep = Clock::rep;
    static constexpr Duration kMuchLost = std::chrono::milliseconds(10), kRemembered = std::chrono::milliseconds(100);
    static constexpr Duration kShortest = std::chrono::milliseconds(20), kLongest = std::chrono::milliseconds(1200);
    static constexpr Duration kSoon = std::chrono::milliseconds(300);
    static Rep ticks(Clock::time_point time) { return time.time_since_epoch().count(); }

    // Updates that several threads make at once may be lost; that does no harm.
    std::atomic<Rep> lost_ = 0, taken_ = 0, until_ = 0, for_ = 0;
};

inline Contention pool_contention;    // of calls on threads of our own
inline Contention openmp_contention;  // of calls on those of an OpenMP library

}  // namespace vkrnn::cpu
