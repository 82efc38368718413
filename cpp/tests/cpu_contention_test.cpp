// Tests how calls notice contention, and what they do about it.
#include <gtest/gtest.h>

#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <functional>
#include <thread>
#include <vector>

#include "cpu/contention.h"
#include "cpu/processor_time.h"
#include "cpu_team.h"

namespace vkrnn::cpu {
namespace {

using namespace std::chrono_literals;

std::chrono::nanoseconds thread_time() { return processor_time(CLOCK_THREAD_CPUTIME_ID).value(); }

bool contention_ends() {
    for (int i = 0; i < 300 && contended(); ++i) std::this_thread::sleep_for(10ms);
    return !contended();
}

// Forgets the time lost in earlier tests, and returns whether no contention is assumed in the end.
bool starts_without_contention() {
    pool_contention.begin(Contention::Clock::now());
    return contention_ends();
}

TEST(ContendedTeam, SplitsUpIfBarriersTakeMostOfTheTime) {
    const Threads allowed(3);
    ASSERT_TRUE(starts_without_contention());
    std::atomic<unsigned> parted = 0, noticed = 0;  // checked at once, because the back-off is short
    unsigned size = 0;
    run_on_team(3, {}, [&](Member& member) {
        if (member.rank() == 0) size = member.size();
        for (int round = 0; round < 50; ++round) {
            if (member.rank() != 0) std::this_thread::sleep_for(1ms);
            if (member.barrier(1, member.rank(), member.size(), true) == 1) {
                ++parted;
                if (contended()) ++noticed;
                return;
            }
        }
    });
    if (size == 1) GTEST_SKIP() << "needs more than one thread";
    EXPECT_EQ(parted, size) << "all members see it in the same round";
    EXPECT_GT(noticed, 0u);
    EXPECT_TRUE(contention_ends());
}

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

// Four simultaneous teams wait for two of nine milliseconds each, which the call loses only once. If other software
// uses the processors, any member may wait longer, or the first one waits for a processor. Contention is then
// reported rightly, but only once a call has lost two fifths of its time.
TEST(ContendedTeam, CountsTheLossOfSimultaneousTeamsOnce) {
    using Clock = Contention::Clock;
    using Duration = Contention::Duration;
    const Threads allowed(8);
    ASSERT_TRUE(starts_without_contention());
    unsigned size = 8;
    bool noticed = false, much_lost = false;
    for (int call = 0; call < 10 && size == 8 && !noticed; ++call) {
        std::array<Duration, 8> lost{};
        Duration taken{}, without_processor{};
        run_on_team(8, {}, [&](Member& member) {
            if (member.rank() == 0) size = member.size();
            if (member.size() != 8) return;
            const auto began = Clock::now();
            const unsigned team = member.rank() / 2, own = member.rank() % 2;
            // Only the first member computes, so that two processors are enough.
            const auto work_for = [&](std::chrono::milliseconds time) {
                if (member.rank() != 0) return std::this_thread::sleep_for(time);
                const auto from = Clock::now();
                for (const auto end = thread_time() + time; thread_time() < end;) continue;
                without_processor += Clock::now() - from - time;
            };
            const auto wait_at = [&](unsigned which, unsigned number, unsigned members) {
                const auto come = Clock::now();
                member.barrier(which, number, members, false);
                lost.at(member.rank()) += Clock::now() - come;
            };
            work_for(own == 0 ? 1ms : 3ms);
            wait_at(1 + team, own, 2);
            work_for(6ms);
            wait_at(1 + team, own, 2);
            wait_at(0, member.rank(), 8);
            if (member.rank() == 0) taken = Clock::now() - began;
        });
        noticed = contended();
        much_lost = much_lost || 5 * (*std::ranges::max_element(lost) + without_processor) > 2 * taken;
    }
    if (size < 8) GTEST_SKIP() << "needs 8 threads, has " << size;
    EXPECT_TRUE(!noticed || much_lost);
}

// Lets two threads work until `noticed` returns true, for ten seconds at most. Returns how many threads there were.
unsigned work_until(const std::function<bool()>& noticed) {
    unsigned size = 2;
    const auto end = Contention::Clock::now() + 10s;
    while (size == 2 && !noticed() && Contention::Clock::now() < end) {
        run_on_team(2, {}, [&](Member& member) {
            if (member.rank() == 0) size = member.size();
            for (const auto until = thread_time() + 10ms; thread_time() < until;) continue;
        });
    }
    return size;
}

// Busy processes occupy the processors: both threads may share one of two processors, and neither waits for the other.
TEST(ContendedTeam, NoticesThatAMemberWaitsForAProcessor) {
    const Threads allowed(2);
    ASSERT_TRUE(starts_without_contention());
    std::vector<pid_t> busy;
    for (unsigned i = 0; i < 2 * std::thread::hardware_concurrency(); ++i) {
        busy.push_back(fork());
        if (busy.back() != 0) continue;
        for (std::atomic<unsigned> turns = 0;;) ++turns;
    }
    bool noticed = false;
    const unsigned size = work_until([&] { return noticed = contended(); });
    for (const pid_t process : busy) {
        kill(process, SIGKILL);
        waitpid(process, nullptr, 0);
    }
    if (size == 1) GTEST_SKIP() << "needs more than one thread";
    EXPECT_TRUE(noticed);
    EXPECT_TRUE(contention_ends());
}

// Which software is found to use the processors depends on what else the machine does meanwhile.
TEST(ContendedTeam, NoticesBusyThreadsOfItsProcess) {
    const Threads allowed(3);
    ASSERT_TRUE(starts_without_contention());
    pool_contention.end();
    std::atomic<bool> done = false;
    std::vector<std::thread> busy;
    for (unsigned i = 0; i < 2 * std::thread::hardware_concurrency(); ++i)
        busy.emplace_back([&] {
            while (!done) continue;
        });
    bool own = false, backs_off = false;
    const unsigned size = work_until([&] {
        backs_off = contended();
        own = pool_contention.own_within(1min);
        return own || backs_off;
    });
    done = true;
    for (std::thread& each : busy) each.join();
    if (size == 1) GTEST_SKIP() << "needs more than one thread";
    EXPECT_NE(own, backs_off);
    EXPECT_TRUE(contention_ends());
    pool_contention.end();
}

int processors_of_this_thread() {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
}

// Returns the length of this thread's time slices in nanoseconds, or 0 before Linux 6.12.
std::uint64_t slice_of_this_thread() {
    std::array<std::uint64_t, 6> attributes{};  // the length is the fourth of sched_attr's members of eight bytes
    return syscall(SYS_sched_getattr, 0, attributes.data(), sizeof attributes, 0) == 0 ? attributes[3] : 0;
}

TEST(ContendedTeam, HasItsWorkersApartBesideThreadsOfItsProcess) {
    const int all = processors_of_this_thread();
    const unsigned allowed = allowed_threads();
    if (allowed == 1 || static_cast<int>(allowed) != all) GTEST_SKIP() << "needs all of several processors";
    std::vector<int> counts(allowed), where(allowed);
    std::vector<std::uint64_t> slices(allowed);
    const auto run = [&] {
        run_on_team(allowed, {}, [&](Member& member) {
            counts.at(member.rank()) = processors_of_this_thread();
            where.at(member.rank()) = sched_getcpu();
            slices.at(member.rank()) = slice_of_this_thread();
        });
    };
    std::vector<int> one_each(allowed, 1);
    one_each.front() = all;
    pool_contention.note_own(Contention::Clock::now());
    run();
    EXPECT_EQ(counts, one_each);
    if (slices.front() != 0) {
        EXPECT_EQ(slices.back(), 100'000U);
    }
    std::sort(where.begin() + 1, where.end());
    EXPECT_EQ(std::adjacent_find(where.begin() + 1, where.end()), where.end());
    pool_contention.end();
    run();
    EXPECT_EQ(counts, std::vector<int>(allowed, all));
}

TEST(ContendedTeam, NoticesMembersThatAreLateBetweenKernels) {
    const Threads allowed(2);
    unsigned size = 2;
    bool noticed = false;
    for (int call = 0; call < 100 && size == 2 && !noticed; ++call) {
        run_on_team(2, {}, [&](Member& member) {
            if (member.rank() == 0) size = member.size();
            if (member.rank() == 1) std::this_thread::sleep_for(1ms);
            EXPECT_EQ(member.barrier(0, member.rank(), member.size(), false), member.size());
        });
        noticed = contended();
    }
    if (size == 1) GTEST_SKIP() << "needs more than one thread";
    EXPECT_TRUE(noticed);
    EXPECT_TRUE(contention_ends());
}

}  // namespace
}  // namespace vkrnn::cpu
