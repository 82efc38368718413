// Threads that run a call together. They are kept for later calls and given back at its end.
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

// Returns how many threads a call may use now: the least of the calling thread's affinity, the quotas of processor time
// of its control groups, the environment variable VKRNN_NUM_THREADS, else OMP_NUM_THREADS, and the threads of the
// OpenMP library that the thread has entered. Throws DeviceError if VKRNN_NUM_THREADS is no positive number; `prefix`
// begins the message.
unsigned allowed_threads(std::string_view prefix = {});

// Whether the threads of a call would wait long for each other, as they did of late: then they had better not meet in
// every time step, and short work had better have one.
bool contended();

// Where some of a team wait for each other, in one round after another.
class Meeting {
    friend class Member;
    friend class Team;

    // How many have arrived in the round. Nobody waits at this word, so who arrives does not disturb those who wait.
    alignas(64) std::atomic<std::uint32_t> arrived_ = 0;
    // Twice the number of the round, and 1 more where the team has been stopped. Who comes last begins the next round.
    alignas(64) std::atomic<std::uint32_t> round_ = 0;
    std::atomic<std::uint32_t> sleepers_ = 0;
    // The round in which all but the first member leave.
    alignas(64) std::atomic<std::uint32_t> parts_in_ = kNoRound;
    // The first member's: the rounds so far, those since it last looked at the clock, when the meeting was made and
    // when it last looked, and how much time waiting has taken.
    alignas(64) std::uint32_t rounds_ = 0, unseen_ = 0;
    std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now(), seen_ = began_;
    std::chrono::steady_clock::duration lost_{0};

    static constexpr std::uint32_t kStopped = 1, kRound = 2, kNoRound = kStopped;
    // Returns the round that the member arrived in.
    std::uint32_t arrive(unsigned members);
    // For the first member, before it arrives: settles whether the others leave in this round.
    void announce(bool may_part, Contention& contention);
    // For the first member, which came then and has waited until now; more than `usual` is lost time.
    void saw(std::chrono::steady_clock::time_point come, std::chrono::steady_clock::duration usual);
};

// One thread's part in a team.
class Member {
public:
    Member(Team& team, unsigned rank) : team_(team), rank_(rank) {}

    [[nodiscard]] unsigned rank() const { return rank_; }
    [[nodiscard]] unsigned size() const;

    // To be asked now and then during long work: true where it is to end, because nobody wants its results any more.
    bool stopped();

    // So many bytes for the thread's own use until it asks again with the same number, 0 to 3; aligned to 64. Throws
    // std::bad_alloc.
    void* scratch(std::size_t number, std::size_t bytes) const;

    // Waits for so many members of the team, of which this is number `own`, at the meeting number `which`, 0 to
    // size(). They spin for a moment, then sleep. Returns how many are to go on: 0 where the team has been stopped; 1,
    // the first, where they `may_part` and waiting has taken so long that somebody else must have the processors.
    unsigned meet(unsigned which, unsigned own, unsigned members, bool may_part);

    // contended() as the call began.
    [[nodiscard]] bool contended() const;

private:
    Team& team_;
    unsigned rank_;
    unsigned asked_ = 0;
};

// Thrown in a child process that a poll has forked. The child has only the calling thread, so the team's work is not
// done there; it can be begun again.
struct Forked {};

// Runs `work` on up to `wanted` threads, of which the calling one is the first; on fewer where others of the process
// are busy. The others are those of the OpenMP library that the calling thread has entered, else our own, or, while
// somebody else has the processors, those of an OpenMP library that the process uses. They take the calling thread's
// rounding and treatment of denormals for the call. The first member asks `poll` now and then; if that returns true, or
// a member throws, all are stopped. Throws Interrupted, Forked, or what a member threw.
void run_on_team(unsigned wanted, const std::function<bool()>& poll, const std::function<void(Member&)>& work);

// The calling thread as a team of one, made ahead: work on it takes no lock, and allocates nothing but scratch memory.
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

// The threads that wait for work. For tests.
std::size_t idle_threads();

}  // namespace vkrnn::cpu
