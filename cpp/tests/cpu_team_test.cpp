// Tests teams of threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cfenv>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>

#include "cpu_team.h"
#include "forks.h"
#include "polls.h"
#include "vkrnn/error.h"

namespace vkrnn::cpu {
namespace {

TEST(Team, HasAllAllowedMembers) {
    for (const unsigned threads : {1U, 2U, 5U, 8U}) {
        const Threads allowed(threads);
        ASSERT_LE(allowed_threads(), threads);
        EXPECT_EQ(members_of(threads), allowed_threads());
        EXPECT_EQ(members_of(threads + 3), allowed_threads());
        EXPECT_GE(idle_threads(), allowed_threads() - 1);
    }
}

// Each member writes a non-atomic number, which all others read after the barrier.
TEST(Team, BarriersWorkWithMoreMembersThanProcessors) {
    const Threads allowed(8);
    constexpr unsigned kRounds = 100;
    struct alignas(64) Slot {
        unsigned round = 0;
    };
    std::vector<Slot> slots(8);
    std::atomic<unsigned> wrong = 0, ended = 0;
    unsigned size = 0;
    run_on_team(8, {}, [&](Member& member) {
        if (member.rank() == 0) size = member.size();
        for (unsigned round = 1; round <= kRounds; ++round) {
            slots[member.rank()].round = round;
            if (member.barrier(0, member.rank(), member.size(), false) != member.size()) ++wrong;
            for (unsigned i = 0; i < member.size(); ++i)
                if (slots[i].round != round) ++wrong;
            if (member.barrier(0, member.rank(), member.size(), false) != member.size()) ++wrong;
        }
        ++ended;
    });
    EXPECT_EQ(wrong, 0u);
    EXPECT_EQ(ended, size);
}

TEST(Team, SomeMembersHaveABarrierOfTheirOwn) {
    const Threads allowed(6);
    std::vector<unsigned> numbers(6);
    std::atomic<unsigned> wrong = 0;
    run_on_team(6, {}, [&](Member& member) {
        if (member.size() != 6) return;
        const unsigned team = member.rank() / 2, own = member.rank() % 2;
        for (unsigned round = 1; round <= 100; ++round) {
            numbers[member.rank()] = round;
            if (member.barrier(1 + team, own, 2, false) != 2) ++wrong;
            if (numbers[2 * team] != round || numbers[2 * team + 1] != round) ++wrong;
            if (member.barrier(1 + team, own, 2, false) != 2) ++wrong;
        }
    });
    EXPECT_EQ(wrong, 0u);
}

// A poll runs signal handlers, which may make calls.
TEST(Team, ACallWithinAnotherHasItsOwnScratch) {
    constexpr std::size_t kBytes = 100;
    const auto fill = [](Member& member, std::size_t bytes, int value) {
        return static_cast<char*>(std::memset(member.scratch(0, bytes), value, bytes));
    };
    const test::PollsAlways polls;
    int polled = 0;
    const auto poll = [&] {
        for (const std::size_t bytes : {kBytes, 1000 * kBytes})
            run_on_team(1, {}, [&](Member& member) { fill(member, bytes, 2); });
        ++polled;
        return false;
    };
    run_on_team(1, poll, [&](Member& member) {
        const char* const bytes = fill(member, kBytes, 1);
        while (polled < 2) member.stopped();
        EXPECT_EQ(std::string(bytes, kBytes), std::string(kBytes, 1));
    });
}

TEST(Team, PassesOnAMembersException) {
    const Threads allowed(4);
    for (unsigned thrower = 0; thrower < 4; ++thrower) {
        for (const bool last : {false, true}) {
            std::atomic<unsigned> come = 0;
            try {
                run_on_team(4, {}, [&](Member& member) {
                    if (member.rank() == thrower % member.size()) {
                        while (last && come + 1 < member.size()) std::this_thread::yield();
                        throw std::runtime_error("from a member");
                    }
                    ++come;
                    while (member.barrier(0, member.rank(), member.size(), false) != 0) {
                    }
                });
                ADD_FAILURE() << "no exception was thrown";
            } catch (const std::runtime_error& error) {
                EXPECT_STREQ(error.what(), "from a member");
            }
            EXPECT_EQ(members_of(4), allowed_threads()) << "the next call";
        }
    }
}

TEST(Team, LateMembersOfAStoppedTeamPassItsBarriers) {
    const test::PollsAlways polls;
    const Threads allowed(3);
    for (const bool throws : {false, true}) {
        const auto work = [&](Member& member) {
            if (throws && member.rank() == 0) throw std::runtime_error("from the first");
            while (!member.stopped()) std::this_thread::yield();
            EXPECT_EQ(member.barrier(0, member.rank(), member.size(), false), 0u);
        };
        if (throws) {
            EXPECT_THROW(run_on_team(3, {}, work), std::runtime_error);
        } else {
            EXPECT_THROW(run_on_team(
                             3, [] { return true; }, work),
                         Interrupted);
        }
        EXPECT_EQ(members_of(3), allowed_threads());
    }
}

TEST(Team, StopsIfThePollReturnsTrue) {
    const test::PollsAlways polls;
    for (const unsigned threads : {1U, 3U}) {
        const Threads allowed(threads);
        std::atomic<unsigned> asked = 0;
        const auto stop_later = [&] { return ++asked == 3; };
        EXPECT_THROW(run_on_team(threads, stop_later,
                                 [](Member& member) {
                                     while (member.barrier(0, member.rank(), member.size(), false) != 0) {
                                     }
                                 }),
                     Interrupted);
        EXPECT_EQ(asked, 3u);
        EXPECT_EQ(members_of(threads), allowed_threads()) << "the next call";
    }
}

// Returns whether the calling thread rounds upward.
bool rounds_upward() {
    const volatile float one = 1, little = 1e-10F;
    return one + little > one;
}

TEST(Team, RoundsAsTheCallingThread) {
    const Threads allowed(3);
    ASSERT_EQ(members_of(3), allowed_threads());  // starts the workers before
    for (const bool upward : {true, false}) {
        ASSERT_EQ(std::fesetround(upward ? FE_UPWARD : FE_TONEAREST), 0);
        std::array<bool, 3> found{!upward, !upward, !upward};
        unsigned size = 0;
        run_on_team(3, {}, [&](Member& member) {
            found.at(member.rank()) = rounds_upward();
            if (member.rank() == 0) size = member.size();
        });
        std::fesetround(FE_TONEAREST);
        for (unsigned rank = 0; rank < size; ++rank) EXPECT_EQ(found.at(rank), upward) << rank;
    }
}

#ifdef VKRNN_HAS_FORKS
TEST(Team, AForkedChildRunsAlone) {
    const Threads allowed(3);
    if (members_of(3) == 1) GTEST_SKIP() << "needs more than one thread";
    const test::PollsAlways polls;
    for (const bool stops : {false, true}) {
        pid_t child = -1;
        const auto fork_once = [&] {
            if (child == -1 && (child = fork()) == 0) alarm(test::kHangs);
            return child == 0 && stops;
        };
        int code = 1;
        try {
            run_on_team(3, fork_once, [&](Member& member) {
                while (member.barrier(0, member.rank(), member.size(), false) != 0) {
                    if (member.rank() == 0 && child > 0) throw std::runtime_error("the parent has seen enough");
                }
            });
        } catch (const std::runtime_error&) {  // Interrupted is one, too
            code = stops ? 2 : 1;
        } catch (const Forked&) {
            code = 2;
        }
        if (child == 0) _exit(code);
        int status = 0;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        EXPECT_EQ(WEXITSTATUS(status), 2) << stops;
        EXPECT_EQ(members_of(3), allowed_threads()) << "the next call";
    }
}
#endif

TEST(Team, SharesTheProcessorsWithOtherCalls) {
    const Threads allowed(3);
    std::atomic<unsigned> most = 0, running = 0;
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 3; ++caller)
        callers.emplace_back([&] {
            for (int call = 0; call < 20; ++call)
                run_on_team(3, {}, [&](Member& member) {
                    const unsigned now = ++running;
                    for (unsigned seen = most; now > seen && !most.compare_exchange_weak(seen, now);) {
                    }
                    member.barrier(0, member.rank(), member.size(), false);
                    --running;
                });
        });
    for (std::thread& caller : callers) caller.join();
    // A caller works itself even if other calls have all threads.
    EXPECT_LE(most, 5u);
    EXPECT_EQ(running, 0u);
}

}  // namespace
}  // namespace vkrnn::cpu
