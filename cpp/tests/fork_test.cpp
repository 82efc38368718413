// Tests mutexes that are locked before a fork, and values that need none.
#include <gtest/gtest.h>

#include <future>
#include <mutex>
#include <thread>

#include "base/fork_safe_mutex.h"
#include "base/lazy.h"
#include "vkrnn/fork.h"

namespace vkrnn {
namespace {

bool is_locked(ForkSafeMutex& mutex) {
    if (!mutex.try_lock()) return true;
    mutex.unlock();
    return false;
}

bool is_locked_elsewhere(ForkSafeMutex& mutex) {
    return std::async(std::launch::async, [&] { return is_locked(mutex); }).get();
}

// A fork that waited for the other mutex first would deadlock with a thread that holds it and needs the outer one.
TEST(Fork, LocksTheOuterMutexFirst) {
    ForkSafeMutex other(ForkSafeMutex::Kind::driver), outer(ForkSafeMutex::Kind::outer);
    other.lock();
    std::thread fork([] {
        hold_before_fork();
        release_after_fork();
    });
    while (!is_locked(outer)) std::this_thread::yield();
    other.unlock();
    fork.join();
}

TEST(Fork, HoldsThoseThatAreLockedInDriversUntilTheEnd) {
    ForkSafeMutex driver(ForkSafeMutex::Kind::driver), outer(ForkSafeMutex::Kind::outer);
    hold_before_fork();
    EXPECT_TRUE(is_locked_elsewhere(driver));
    EXPECT_TRUE(is_locked_elsewhere(outer));
    release_after_fork();
    EXPECT_FALSE(is_locked(driver));
    EXPECT_FALSE(is_locked(outer));
}

// Python runs other hooks meanwhile, which may wait for a lock of another thread that uses the core.
TEST(Fork, LeavesOtherThreadsTheCoreUntilItBegins) {
    ForkSafeMutex inner;
    hold_before_fork();
    EXPECT_FALSE(is_locked_elsewhere(inner));
    std::async(std::launch::async, [] { const ForkSafeMutex made; }).get();
    release_after_fork();
}

// Hooks and the garbage collector run in the thread that forks.
TEST(Fork, MayUseTheCoreMeanwhile) {
    ForkSafeMutex outer(ForkSafeMutex::Kind::outer);
    hold_before_fork();
    {
        const std::lock_guard lock(outer);
        const ForkSafeMutex made(ForkSafeMutex::Kind::driver);
    }
    ForkSafeMutex stays(ForkSafeMutex::Kind::driver);
    EXPECT_TRUE(is_locked_elsewhere(outer));
    EXPECT_TRUE(is_locked_elsewhere(stays));
    release_after_fork();
    EXPECT_FALSE(is_locked(outer));
    EXPECT_FALSE(is_locked(stays));
}

// Otherwise, a child forked while another thread makes the value would wait for ever.
TEST(Fork, NobodyWaitsForALazyValue) {
    static constinit Lazy<int> value;
    std::promise<void> making, go_on;
    std::future<int> first = std::async(std::launch::async, [&] {
        return value.get([&] {
            making.set_value();
            go_on.get_future().wait();
            return 1;
        });
    });
    making.get_future().wait();
    EXPECT_EQ(value.get([] { return 2; }), 2);
    go_on.set_value();
    EXPECT_EQ(first.get(), 2);
    EXPECT_EQ(value.get([] { return 3; }), 2);
}

}  // namespace
}  // namespace vkrnn
