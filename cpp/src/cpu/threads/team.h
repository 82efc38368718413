// Teams of threads that run a call together. The threads come from a pool and go back to it when the call ends.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

namespace vkrnn::cpu {

class Contention;
class Team;

// Returns how many threads a call may use now. This is the minimum of the calling thread's affinity, the CPU quotas of
// its control groups, the environment variable VKRNN_NUM_THREADS (or else OMP_NUM_THREADS), and the threads of the
// OpenMP library that the thread has entered. Throws DeviceError if VKRNN_NUM_THREADS is not a positive number;
// `prefix` begins the message.
unsigned allowed_threads(std::string_view prefix = {});

// Returns true if threads recently spent long waiting at barriers. Callers should then avoid per-step barriers and run
// short work on one thread.
bool contended();

// A reusable barrier for some threads of a team. Each use of it is a round.
class Barrier {
    friend class Member;
    friend class Team;

    // Members that have arrived in this round. Waiting members do not read this word, so arrivals do not disturb them.
    alignas(64) std::atomic<std::uint32_t> arrived_ = 0;
    // Twice the number of the round, plus 1 once the team has been stopped. The last member to arrive begins the next
    // round.
    alignas(64) std::atomic<std::uint32_t> round_ = 0;
    std::atomic<std::uint32_t> sleepers_ = 0;
    // The round after which all members but the first leave; kNoRound if there is none.
    alignas(64) std::atomic<std::uint32_t> ends_after_ = kNoRound;
    // Used by the first member alone: the rounds so far, the rounds since it last read the clock, when the measurement
    // began, when it last read the clock, and the time lost by waiting since `began_`.
    alignas(64) std::uint32_t rounds_ = 0, unseen_ = 0;
    std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now(), seen_ = began_;
    std::chrono::steady_clock::duration lost_{0};

    static constexpr std::uint32_t kStopped = 1, kRound = 2, kNoRound = kStopped;
    // Registers the arrival of a member and returns its round.
    std::uint32_t arrive(unsigned members);
    // Called by the first member before it arrives. Decides whether the others leave in this round.
    void start_round(bool may_split, Team& team);
    // Called by the first member, which arrived at `arrival` and has waited until now. A wait longer than `usual` is
    // lost time.
    void record_wait(std::chrono::steady_clock::time_point arrival, std::chrono::steady_clock::duration usual);
};

// A word that members wait for.
class Signal {
public:
    void notify();

private:
    friend class Member;
    alignas(64) std::atomic<std::uint32_t> word_ = 0;
    std::atomic<std::uint32_t> sleepers_ = 0;
};

// One thread of a team, or of a part of it.
class Member {
public:
    Member(Team& team, unsigned rank);

    // Return the number of this thread in its team or part, and how many threads that has.
    [[nodiscard]] unsigned rank() const { return rank_ - first_; }
    [[nodiscard]] unsigned size() const { return size_; }

    // Returns this thread as a member of a part of the team, which has threads [first, first + size). Parts can work at
    // the same time on different kernels. The whole team waits at a barrier before and after.
    [[nodiscard]] Member in_part(unsigned first, unsigned size) const;

    // Poll during long work. Returns true once the call has been cancelled.
    bool stopped();

    // Returns memory of at least `bytes` for this thread, aligned to 64. It is valid until the thread asks again with
    // the same number, below kScratchBuffers. Throws std::bad_alloc.
    void* scratch(std::size_t number, std::size_t bytes) const;
    static constexpr std::size_t kScratchBuffers = 5;

    // Waits at barrier number `which`, 0 to size(), for `members` members, of which this is number `own`. Members spin
    // for a moment, then sleep. Returns how many members go on: 0 if the team has been stopped; 1, the first, if they
    // `may_split` and waiting has taken so long that other software must be using the processors; otherwise all.
    unsigned barrier(unsigned which, unsigned own, unsigned members, bool may_split);

    // Waits until `holds` returns true, which may happen whenever `signal` has been notified. Spins for the time `spin`
    // at least, then sleeps. Returns false if the team has been stopped.
    bool wait(Signal& signal, const std::function<bool()>& holds, std::chrono::steady_clock::duration spin);

    // Returns whether there was contention when the call began.
    [[nodiscard]] bool contended() const;

private:
    Team& team_;
    unsigned rank_;  // in the whole team
    unsigned first_ = 0, size_, first_barrier_ = 0;
    unsigned asked_ = 0;
};

// Thrown in a child process that a poll has forked. The child has only the calling thread, so the team's work does not
// finish there. It can be started again.
struct Forked {};

// Runs `work` on up to `wanted` threads. The calling thread is the first; there are fewer if other threads of the
// process are busy. The other threads belong to the OpenMP library that the calling thread has entered, or else to our
// pool. If the pool suffers from contention, they belong to an OpenMP library that the process uses. They take over the
// calling thread's rounding mode and treatment of denormals for the call. The first member calls `poll` now and then.
// If it returns true, or a member throws, all members are stopped. Throws Interrupted, Forked, or what a member threw.
void run_on_team(unsigned wanted, const std::function<bool()>& poll, const std::function<void(Member&)>& work);

// A team of the calling thread alone, prepared in advance. Work on it takes no lock and allocates only scratch memory.
class Solo {
public:
    Solo();
    ~Solo();
    Solo(const Solo&) = delete;
    Solo& operator=(const Solo&) = delete;

    [[nodiscard]] Member& member() { return member_; }

private:
    const std::function<bool()> no_poll_;
    std::unique_ptr<Team> team_;
    Member member_;
};

// Returns how many pool threads wait for work. For tests.
std::size_t idle_threads();

}  // namespace vkrnn::cpu
