// Tests what the core needs from the operating system.
#include "base/system.h"

#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <limits>
#include <thread>

#include "forks.h"

namespace vkrnn::system {
namespace {

using namespace std::chrono_literals;

#ifdef VKRNN_HAS_FORKS
TEST(ProcessId, IsThatOfAForkedChild) {
    EXPECT_EQ(process_id(), getpid());
    const pid_t child = fork();
    if (child == 0) _exit(process_id() == getpid() ? 0 : 1);
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
}

std::atomic<int> forks_seen = 0;

TEST(AtFork, IsCalledInTheChild) {
    ASSERT_TRUE(at_fork(nullptr, nullptr, [] { ++forks_seen; }));
    const pid_t child = fork();
    if (child == 0) _exit(forks_seen);
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), 1);
    EXPECT_EQ(forks_seen, 0);
}
#else
TEST(ProcessId, IsPositive) { EXPECT_GT(process_id(), 0); }
#endif

TEST(Libraries, ThatDoNotExistAreNotFound) {
    EXPECT_EQ(open_library("vkrnn-none"), nullptr);
    EXPECT_EQ(find_loaded_library("vkrnn-none"), nullptr);
}

TEST(Processors, AreWordsOfBits) {
    Processors processors;
    EXPECT_EQ(processors.count(), 0U);
    for (const std::size_t each : {0, 63, 64, 1023}) {
        EXPECT_FALSE(processors.has(each));
        processors.add(each);
        EXPECT_TRUE(processors.has(each));
    }
    EXPECT_EQ(processors.count(), 4U);
    EXPECT_EQ(processors.words.at(1), 1U);
}

// What a started thread reports.
struct Report {
    std::atomic<std::uint32_t> stage = 0;
    std::optional<Processors> processors;

    static void* run(void* self) {
        auto& report = *static_cast<Report*>(self);
        for (const std::uint32_t stage : {1U, 3U}) {
            report.processors = allowed_processors();
            report.stage = stage;
            wake_all(report.stage);
            while (report.stage == stage) sleep_while(report.stage, stage, 1h);
        }
        for (;;) std::this_thread::sleep_for(1h);
    }
    void wait_for(std::uint32_t wanted) {
        for (std::uint32_t seen = stage; seen != wanted; seen = stage) sleep_while(stage, seen, 1h);
    }
};

TEST(Threads, HaveTheProcessorsOfTheirMakerUntilTheseAreSet) {
    static Report report;  // the thread never ends
    const auto thread = start_thread(&Report::run, &report);
    ASSERT_TRUE(thread);
    report.wait_for(1);
    if (!report.processors) GTEST_SKIP() << "the system does not tell";
    const auto own = allowed_processors();
    ASSERT_TRUE(own);
    Processors one;
    for (std::size_t i = 0; i < Processors::kMost && one.count() == 0; ++i)
        if (own->has(i)) one.add(i);
    ASSERT_TRUE(set_processors(*thread, one));
    report.stage = 2;
    wake_all(report.stage);
    report.wait_for(3);
    EXPECT_EQ(report.processors, one);
    EXPECT_EQ(allowed_processors(), own);
}

TEST(Threads, RunOnOneOfTheirProcessors) {
    const auto allowed = allowed_processors();
    const int now = current_processor();
    if (!allowed || now < 0) GTEST_SKIP() << "the system does not tell";
    EXPECT_TRUE(allowed->has(static_cast<std::size_t>(now)));
}

TEST(Threads, DoNotSleepIfTheWordDiffers) {
    std::atomic<std::uint32_t> word = 1;
    sleep_while(word, 0, 1h);
    sleep_while(word, 1, 0ns);
    sleep_while(word, 1, 1ns);
}

TEST(Clocks, MoveWhileAThreadWorks) {
    const auto thread = thread_time(), process = process_time();
    while (thread_time() == thread || process_time() == process) continue;
    EXPECT_GT(thread_time(), thread);
    EXPECT_GT(process_time(), process);
}

TEST(Clocks, OfOtherThreadsEndWithThem) {
    std::optional<ThreadClock> clock;
    std::promise<void> made, read;
    std::thread thread([&] {
        clock = clock_of_this_thread();
        made.set_value();
        read.get_future().wait();
    });
    made.get_future().wait();
    const bool shows = clock && read_clock(*clock);
    read.set_value();
    thread.join();
    if (!clock) GTEST_SKIP() << "the system has no such clocks";
    EXPECT_TRUE(shows);
    while (read_clock(*clock)) std::this_thread::yield();  // the system may end a thread a moment after it was joined
}

TEST(Memory, IsAligned) {
    for (const std::size_t alignment : {std::size_t{64}, std::size_t{4096}, kHugePage}) {
        void* const memory = allocate_memory(alignment, 2 * alignment);
        ASSERT_NE(memory, nullptr);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % alignment, 0U);
        std::memset(memory, 1, 2 * alignment);
        free_memory(memory);
    }
    free_memory(nullptr);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // these end the program instead
    EXPECT_EQ(allocate_memory(64, std::size_t{1} << 60), nullptr);
#endif
}

TEST(Machine, IsKnown) {
    EXPECT_GT(physical_memory(), std::uint64_t{1} << 20);
    EXPECT_GT(available_memory(), std::uint64_t{1} << 20);
    EXPECT_LE(second_level_cache(), std::uint64_t{1} << 30);
    EXPECT_EQ(processor_name().find('\0'), std::string::npos);
}

}  // namespace
}  // namespace vkrnn::system
