// Tests mutexes that are locked before a fork, and values that need none.
#include <gtest/gtest.h>

#include <future>
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

// A fork that waited for the inner mutex first would deadlock with a thread that holds it and needs the outer one.
TEST(Fork, LocksTheOuterMutexFirst) {
    ForkSafeMutex inner, outer(ForkSafeMutex::Kind::outer);
    inner.lock();
    std::thread fork([] {
        hold_before_fork();
        release_after_fork();
    });
    while (!is_locked(outer)) std::this_thread::yield();
    inner.unlock();
    fork.join();
}

TEST(Fork, HoldsEveryMutexUntilTheEnd) {
    ForkSafeMutex inner, outer(ForkSafeMutex::Kind::outer);
    const auto are_locked = [&] {
        return std::async(std::launch::async, [&] { return is_locked(inner) && is_locked(outer); }).get();
    };
    hold_before_fork();
    EXPECT_TRUE(are_locked());
    release_after_fork();
    EXPECT_FALSE(is_locked(inner));
    EXPECT_FALSE(is_locked(outer));
}

// Otherwise, a child forked while another thread makes the value would wait for ever.
TEST(Fork, NobodyWaitsForALazyValue) {
    Lazy<int> value;
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
