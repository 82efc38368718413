// Detects whether other software uses the processors.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>

namespace vkrnn::cpu {

// An estimate of contention from the recent calls of the whole process that used several threads. A call loses the time
// for which its first thread waits for others longer than it should, or for a processor. If calls lost more than two
// fifths of their time, other software must be using the processors. (Two threads that share one of two processors with
// each other, because a third thread occupies the other one, lose half.) Contention is then assumed for a back-off
// period, which is quadrupled if it recurs soon. It ends early if other threads of the process used the
// processors and have stopped: threads of other libraries spin for milliseconds after their work. A single wait
// proves nothing, because threads are interrupted on a quiet machine too. There is no back-off if the process itself
// has most of the processors' time: with fewer threads, its calls would only get less of it.
class Contention {
public:
    using Clock = std::chrono::steady_clock;
    using Duration = Clock::duration;

    [[nodiscard]] bool holds(Clock::time_point now = Clock::now()) const {
        return ticks(now) < until_.load(std::memory_order_relaxed);
    }

    // Returns whether calls lost more than an eighth of their time, within this time. That is no reason to use fewer
    // threads, but a reason to run on threads of the software that takes the time, if that is possible.
    [[nodiscard]] bool felt_within(Duration time, Clock::time_point now = Clock::now()) const {
        const Rep felt = felt_.load(std::memory_order_relaxed);
        return felt != 0 && ticks(now) < felt + time.count();
    }

    // Returns whether recent calls show contention, including what the current call has taken so far.
    [[nodiscard]] bool shows(Duration lost, Duration taken) const {
        const Rep all_lost = lost_.load(std::memory_order_relaxed) + lost.count();
        const Rep all_taken = taken_.load(std::memory_order_relaxed) + taken.count();
        return all_lost > kMuchLost.count() && 5 * all_lost > 2 * all_taken;
    }

    // Returns whether contention is only within the process, by the processor time that all its threads used during
    // recent calls, including the current one. A single short call says nothing: the system counts in clock ticks.
    // Always false for two processors, of which two threads that wait for each other get no more than one.
    [[nodiscard]] bool is_own(Duration used, Duration taken, unsigned processors) const {
        const Rep all_used = process_used_.load(std::memory_order_relaxed) + used.count();
        const Rep all_taken = taken_.load(std::memory_order_relaxed) + taken.count();
        return processors > 2 && 8 * all_used > Rep{5} * processors * all_taken;
    }

    // Adds a call that has just ended: its lost and total time, and the processor time that the process used meanwhile.
    void add(Duration lost, Duration taken, Duration used, Clock::time_point now) {
        Rep all_lost = lost_.load(std::memory_order_relaxed) + lost.count();
        Rep all_taken = taken_.load(std::memory_order_relaxed) + taken.count();
        Rep all_used = process_used_.load(std::memory_order_relaxed) + used.count();
        if (all_taken > kRemembered.count()) {
            all_lost /= 2;
            all_taken /= 2;
            all_used /= 2;
        }
        lost_.store(all_lost, std::memory_order_relaxed);
        taken_.store(all_taken, std::memory_order_relaxed);
        process_used_.store(all_used, std::memory_order_relaxed);
        if (all_lost > kSomeLost.count() && 8 * all_lost > all_taken)
            felt_.store(ticks(now), std::memory_order_relaxed);
    }

    // Notes that the contention is within the process.
    void note_own(Clock::time_point now) { own_.store(ticks(now), std::memory_order_relaxed); }

    // Returns whether there was contention within the process, within this time.
    [[nodiscard]] bool own_within(Duration time, Clock::time_point now = Clock::now()) const {
        const Rep own = own_.load(std::memory_order_relaxed);
        return own != 0 && ticks(now) < own + time.count();
    }

    // Starts a back-off period. Does nothing within one, because several teams of a call may notice the same
    // contention.
    void begin(Clock::time_point now) {
        own_.store(0, std::memory_order_relaxed);
        lost_.store(0, std::memory_order_relaxed);
        taken_.store(0, std::memory_order_relaxed);
        process_used_.store(0, std::memory_order_relaxed);
        Rep until = until_.load(std::memory_order_relaxed);
        if (ticks(now) < until) return;
        const Duration last(for_.load(std::memory_order_relaxed));
        const Rep soon = until + std::max<Duration>(last, kSoon).count();
        const Duration length = ticks(now) < soon ? std::clamp<Duration>(4 * last, kShortest, kLongest) : kShortest;
        if (until_.compare_exchange_strong(until, ticks(now + length), std::memory_order_relaxed)) {
            for_.store(length.count(), std::memory_order_relaxed);
            used_ = watched_ = 0;
            others_ = false;
        }
    }

    // Adds a call in a back-off period: its time, and the processor time that the process's other threads used
    // meanwhile. Once such threads have been seen at work and are seen no more, the period ends.
    void add_others(Duration used, Duration taken, Clock::time_point now) {
        const Rep all_used = used_.load(std::memory_order_relaxed) + used.count();
        const Rep watched = watched_.load(std::memory_order_relaxed) + taken.count();
        const bool enough = watched > kWatched.count();
        used_.store(enough ? 0 : all_used, std::memory_order_relaxed);
        watched_.store(enough ? 0 : watched, std::memory_order_relaxed);
        if (!enough) return;
        if (4 * all_used > watched)
            others_.store(true, std::memory_order_relaxed);
        else if (others_.exchange(false, std::memory_order_relaxed))
            until_.store(std::min(until_.load(std::memory_order_relaxed), ticks(now)), std::memory_order_relaxed);
    }

    // Forgets all earlier calls. For tests.
    void end() {
        lost_ = taken_ = process_used_ = felt_ = own_ = until_ = for_ = used_ = watched_ = 0;
        others_ = false;
    }

private:
    using Rep = Clock::rep;
    static constexpr Duration kMuchLost = std::chrono::milliseconds(10), kSomeLost = std::chrono::milliseconds(5);
    static constexpr Duration kRemembered = std::chrono::milliseconds(100);
    static constexpr Duration kShortest = std::chrono::milliseconds(20), kLongest = std::chrono::milliseconds(1200);
    static constexpr Duration kSoon = std::chrono::milliseconds(300);
    // Long beside the tenth of a millisecond for which our own threads spin after their work.
    static constexpr Duration kWatched = std::chrono::milliseconds(10);
    static Rep ticks(Clock::time_point time) { return time.time_since_epoch().count(); }

    // Concurrent updates may be lost, which does no harm.
    std::atomic<Rep> lost_ = 0, taken_ = 0, process_used_ = 0, felt_ = 0, own_ = 0;
    std::atomic<Rep> until_ = 0, for_ = 0, used_ = 0, watched_ = 0;
    std::atomic<bool> others_ = false;  // whether other threads of the process have been seen at work in this period
};

inline Contention pool_contention;    // calls on threads of the pool
inline Contention openmp_contention;  // calls on threads of an OpenMP library

}  // namespace vkrnn::cpu
