// Tests how calls notice contention, and what they do about it.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "cpu/threads/contention.h"
#include "cpu_team.h"
#include "fake_clock.h"

namespace vkrnn::cpu {
namespace {

using namespace std::chrono_literals;

TEST(Contention, LastsLongerIfItRecursAndNotIfManyNoticeIt) {
    Contention contention;
    const Contention::Clock::time_point first = Contention::Clock::now(), second = first + 100ms;
    for (int team = 0; team < 8; ++team) contention.begin(first + team * 1us);
    EXPECT_TRUE(contention.holds(first + 15ms));
    EXPECT_FALSE(contention.holds(first + 25ms));
    for (int team = 0; team < 8; ++team) contention.begin(second + team * 1us);
    EXPECT_TRUE(contention.holds(second + 75ms));
    EXPECT_FALSE(contention.holds(second + 85ms));
}

TEST(Contention, EndsWithTheOtherThreadsThatWereSeen) {
    Contention contention;
    const Contention::Clock::time_point now = Contention::Clock::now();
    contention.begin(now);
    contention.add_others(0ms, 11ms, now);
    EXPECT_TRUE(contention.holds(now)) << "other processes may be the reason";
    contention.add_others(3ms, 6ms, now);
    contention.add_others(1ms, 6ms, now);
    EXPECT_TRUE(contention.holds(now)) << "a third of a processor";
    contention.add_others(0ms, 9ms, now);
    EXPECT_TRUE(contention.holds(now)) << "not watched for long enough";
    contention.add_others(0ms, 2ms, now);
    EXPECT_FALSE(contention.holds(now));
    contention.begin(now + 1ms);
    EXPECT_TRUE(contention.holds(now + 1ms));
    contention.add_others(0ms, 11ms, now + 1ms);
    EXPECT_TRUE(contention.holds(now + 1ms)) << "those were of an earlier period";
}

TEST(Contention, IsWithinAProcessThatHasMostOfTheTime) {
    const Contention::Clock::time_point now = Contention::Clock::now();
    Contention contention;
    EXPECT_TRUE(contention.is_own(41ms, 4ms, 16));
    EXPECT_FALSE(contention.is_own(40ms, 4ms, 16));
    EXPECT_FALSE(contention.is_own(8ms, 4ms, 2)) << "one thread would get as much";
    contention.add(1ms, 4ms, 80ms, now);
    EXPECT_TRUE(contention.is_own(0ms, 3ms, 16)) << "no clock tick in a short call";
    EXPECT_FALSE(contention.is_own(0ms, 4ms, 16));
    contention.begin(now);
    EXPECT_FALSE(contention.is_own(0ms, 1ms, 16));
}

TEST(Contention, IsWithinTheProcessUntilItBacksOff) {
    Contention contention;
    const Contention::Clock::time_point now = Contention::Clock::now();
    EXPECT_FALSE(contention.own_within(1s, now));
    contention.note_own(now);
    EXPECT_TRUE(contention.own_within(1s, now + 999ms));
    EXPECT_FALSE(contention.own_within(1s, now + 1s));
    contention.begin(now);
    EXPECT_FALSE(contention.own_within(1s, now));
}

TEST(Contention, IsFeltBeforeItHolds) {
    Contention contention;
    const Contention::Clock::time_point now = Contention::Clock::now();
    EXPECT_FALSE(contention.felt_within(1s, now));
    contention.add(4ms, 8ms, 0ms, now);
    EXPECT_FALSE(contention.felt_within(1s, now)) << "too little to count";
    contention.add(2ms, 40ms, 0ms, now);
    EXPECT_FALSE(contention.felt_within(1s, now)) << "an eighth";
    contention.add(1ms, 1ms, 0ms, now);
    EXPECT_TRUE(contention.felt_within(1s, now + 999ms));
    EXPECT_FALSE(contention.felt_within(1s, now + 1s));
    EXPECT_FALSE(contention.shows({}, {}));
    contention.add(40ms, 40ms, 0ms, now);
    EXPECT_TRUE(contention.shows({}, {}));
}

// The first of some members that wait for each other. The others let time pass once it waits.
class First {
public:
    // Called by the first member before it comes to the barrier.
    void comes() {
        readings_ = 0;
        test::FakeClock::readings = &readings_;
        ++rounds_;
    }
    void leaves() { test::FakeClock::readings = nullptr; }
    // Called by another member. Returns when the first one has begun to wait in this round, which numbers from 1.
    void wait_for(unsigned round) const {
        while (rounds_ < round || readings_ == 0) std::this_thread::yield();
    }

private:
    std::atomic<unsigned> rounds_ = 0, readings_ = 0;
};

// Calls whose time the tests let pass.
class ContendedTeam : public testing::Test {
protected:
    ContendedTeam() { pool_contention.end(); }
    ~ContendedTeam() override { pool_contention.end(); }

    // Runs a team, and returns how many members it had. Two members or more are not allowed under a small CPU quota.
    static unsigned run(unsigned members, const std::function<void(Member&)>& body) {
        std::atomic<unsigned> size = 0;
        run_on_team(members, {}, [&](Member& member) {
            size = member.size();
            if (member.size() == members) body(member);
        });
        return size;
    }

    void expect_end() {
        EXPECT_TRUE(contended());
        clock_.pass(21ms);
        EXPECT_FALSE(contended());
    }

    // Ten times this is more than the ten milliseconds that calls may lose.
    static constexpr auto kLate = 1050us;

    test::FakeClock clock_;
};

TEST_F(ContendedTeam, SplitsUpIfBarriersTakeMostOfTheTime) {
    const Threads allowed(3);
    std::atomic<unsigned> parted = 0, noticed = 0, rounds = 0;
    First first;
    const unsigned size = run(3, [&](Member& member) {
        for (unsigned round = 1; round <= 20; ++round) {
            if (member.rank() == 0) {
                rounds = round;
                first.comes();
            }
            if (member.rank() == 1) {
                first.wait_for(round);
                clock_.pass(kLate);
            }
            if (member.barrier(1, member.rank(), member.size(), true) == 1) {
                ++parted;
                if (contended()) ++noticed;
                break;
            }
        }
        if (member.rank() == 0) first.leaves();
    });
    if (size < 3) GTEST_SKIP() << "needs 3 threads, has " << size;
    EXPECT_EQ(parted, size) << "all members see it in the same round";
    EXPECT_EQ(noticed, size);
    EXPECT_EQ(rounds, 11U) << "the first after ten lost milliseconds";
    expect_end();
}

// Four simultaneous teams wait for two of nine milliseconds each, which the call loses only once.
TEST_F(ContendedTeam, CountsTheLossOfSimultaneousTeamsOnce) {
    const Threads allowed(8);
    std::array<First, 4> firsts;
    std::barrier all(8), late(4);
    for (unsigned call = 1; call <= 4; ++call) {
        const unsigned size = run(8, [&](Member& member) {
            const unsigned team = member.rank() / 2, own = member.rank() % 2;
            if (member.rank() == 0) clock_.pass(1ms);
            all.arrive_and_wait();
            if (own == 0) {
                firsts.at(team).comes();
            } else {
                firsts.at(team).wait_for(call);
                late.arrive_and_wait();
                if (member.rank() == 1) clock_.pass(2ms);
                late.arrive_and_wait();
            }
            member.barrier(1 + team, own, 2, false);
            if (own == 0) firsts.at(team).leaves();
            all.arrive_and_wait();
            if (member.rank() == 0) clock_.pass(6ms);
            all.arrive_and_wait();
            member.barrier(0, member.rank(), 8, false);
        });
        if (size < 8) GTEST_SKIP() << "needs 8 threads, has " << size;
        EXPECT_FALSE(contended());
    }
    EXPECT_TRUE(pool_contention.felt_within(1s)) << "eight milliseconds were lost";
}

TEST_F(ContendedTeam, NoticesMembersThatAreLateBetweenKernels) {
    const Threads allowed(2);
    First first;
    for (unsigned call = 1; call <= 10; ++call) {
        EXPECT_FALSE(contended()) << call;
        const unsigned size = run(2, [&](Member& member) {
            if (member.rank() == 0) {
                first.comes();
            } else {
                first.wait_for(call);
                clock_.pass(kLate);
            }
            EXPECT_EQ(member.barrier(0, member.rank(), member.size(), false), member.size());
            if (member.rank() == 0) first.leaves();
        });
        if (size == 1) GTEST_SKIP() << "needs more than one thread";
    }
    expect_end();
}

// Other software occupies the processors: members may share one, and do not wait for each other.
TEST_F(ContendedTeam, NoticesThatAMemberWaitsForAProcessor) {
    if (system::kIsWindows) GTEST_SKIP() << "Windows has no precise clock of a thread's processor time";
    const Threads allowed(2);
    for (int call = 0; call < 4; ++call) {
        EXPECT_FALSE(contended()) << call;
        const unsigned size = run(2, [&](Member& member) {
            if (member.rank() == 0) clock_.pass(5ms, 2ms, 4ms);
        });
        if (size == 1) GTEST_SKIP() << "needs more than one thread";
    }
    expect_end();
}

TEST_F(ContendedTeam, NoticesBusyThreadsOfItsProcess) {
    if (system::kIsWindows) GTEST_SKIP() << "Windows has no precise clock of a thread's processor time";
    const Threads allowed(3);
    const auto lose = [&](std::chrono::milliseconds used_by_all) {
        unsigned size = 3;
        for (int call = 0; call < 4 && size == 3; ++call)
            size = run(3, [&](Member& member) {
                if (member.rank() == 0) clock_.pass(5ms, 2ms, used_by_all);
            });
        return size;
    };
    if (const unsigned size = lose(12ms); size < 3) GTEST_SKIP() << "needs 3 threads, has " << size;
    EXPECT_FALSE(contended());
    EXPECT_TRUE(pool_contention.own_within(1s)) << "the process had 12 of 15 milliseconds";
    pool_contention.end();
    lose(8ms);
    EXPECT_FALSE(pool_contention.own_within(1s)) << "the process had 8 of 15 milliseconds";
    expect_end();
}

unsigned processors_of_this_thread() {
    const auto allowed = system::allowed_processors();
    return allowed ? allowed->count() : 0;
}

TEST_F(ContendedTeam, HasItsWorkersApartBesideThreadsOfItsProcess) {
    const unsigned all = processors_of_this_thread();
    const unsigned allowed = allowed_threads();
    if (allowed == 1 || allowed != all) GTEST_SKIP() << "needs all of several processors";
    std::vector<unsigned> counts(allowed);
    std::vector<int> where(allowed);
    const auto run = [&] {
        run_on_team(allowed, {}, [&](Member& member) {
            counts.at(member.rank()) = processors_of_this_thread();
            where.at(member.rank()) = system::current_processor();
        });
    };
    std::vector<unsigned> one_each(allowed, 1);
    one_each.front() = all;
    pool_contention.note_own(Contention::Clock::now());
    run();
    EXPECT_EQ(counts, one_each);
    std::sort(where.begin() + 1, where.end());
    EXPECT_EQ(std::adjacent_find(where.begin() + 1, where.end()), where.end());
    pool_contention.end();
    run();
    EXPECT_EQ(counts, std::vector<unsigned>(allowed, all));
}

}  // namespace
}  // namespace vkrnn::cpu
