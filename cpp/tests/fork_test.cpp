// Tests mutexes that are locked before a fork.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <mutex>
#include <thread>

#include "fork_safe_mutex.h"
#include "vkrnn/fork.h"

namespace vkrnn {
namespace {

using namespace std::chrono_literals;

// A fork that locked the inner mutex first would deadlock with a thread that waits for it.
TEST(Fork, LocksTheOuterMutexFirst) {
    ForkSafeMutex inner, outer(ForkSafeMutex::Kind::outer);
    std::promise<void> outer_is_held, fork_begins;
    std::thread holder([&] {
        const std::lock_guard lock(outer);
        outer_is_held.set_value();
        fork_begins.get_future().wait();
        std::this_thread::sleep_for(50ms);  // until the fork waits
        const std::lock_guard another(inner);
    });
    outer_is_held.get_future().wait();
    std::future<void> fork = std::async(std::launch::async, [&] {
        fork_begins.set_value();
        hold_before_fork();
        release_after_fork();
    });
    if (fork.wait_for(20s) != std::future_status::ready) {
        std::fputs("The fork and the thread wait for each other.\n", stderr);
        std::_Exit(1);
    }
    holder.join();
}

TEST(Fork, HoldsEveryMutexUntilTheEnd) {
    ForkSafeMutex mutex;
    hold_before_fork();
    std::promise<void> tries;
    std::future<void> other = std::async(std::launch::async, [&] {
        tries.set_value();
        const std::lock_guard lock(mutex);
    });
    tries.get_future().wait();
    EXPECT_EQ(other.wait_for(50ms), std::future_status::timeout);
    release_after_fork();
    other.wait();
}

}  // namespace
}  // namespace vkrnn
