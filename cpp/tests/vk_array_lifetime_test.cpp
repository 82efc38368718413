// Tests how long the memory of storages lives, and what is left of them when their device is lost or closed.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "polls.h"
#include "scale.h"
#include "vk_arrays.h"

namespace vkrnn::test {
namespace {

TEST_P(Arrays, MayBeDroppedInFlight) {
    std::vector<Shared> results;
    for (int round = 0; round < 30; ++round) {
        Shared input = put(counting(20011));
        results.push_back(added(added(input)));  // drops the intermediate result at once
        input.reset();
        put(Words(20011, 0));  // may reuse the memory
        device_->clear(device_->allocate(20011 * 4, true), {});
    }
    for (const Shared& result : results) {
        ASSERT_EQ(words_of(result), plus_one(plus_one(counting(20011))));
    }
}

TEST_P(Arrays, TheHostMayUseAnArraysMemoryAfterWaiting) {
    constexpr std::uint64_t kBytes = 200000;
    for (int round = 0; round < 3; ++round) {
        start(slow_plan(kBytes), {}, {.storage = device_->allocate(kBytes, false)});  // dropped while the call runs
        const Shared storage = device_->allocate(kBytes, false);
        device_->wait(*storage, {});
        if (mapped_) {
            const Bytes bytes = pattern(kBytes);
            std::memcpy(storage->host(), bytes.data(), kBytes);
            device_->synchronize({});
            EXPECT_EQ(std::memcmp(storage->host(), bytes.data(), kBytes), 0) << "an earlier call wrote to it";
        } else {
            EXPECT_EQ(storage->host(), nullptr);
        }
    }
}

TEST_P(Arrays, AnInterruptedCallsMemoryIsNotReusedTooSoon) {
    const PollsAlways polls;
    constexpr std::uint64_t kBytes = 200000;
    for (int round = 0; round < (full() ? 3 : 1); ++round) {
        Shared result = device_->allocate(kBytes, false);
        int asked = 0;
        EXPECT_THROW(start(slow_plan(kBytes, 100'000), {}, {.storage = result}, "test", [&] { return ++asked == 2; }),
                     Interrupted);
        result.reset();
        const Bytes bytes = pattern(kBytes);
        const Shared storage = put(bytes);
        device_->synchronize({});
        EXPECT_EQ(bytes_of(storage), bytes) << "the interrupted call wrote to it";
    }
}

TEST_P(Arrays, DeviceLossNamesTheFirstUnfinishedCall) {
    const Shared input = put(counting(100));
    const Shared first = added(input, "first");
    device_->lose_for_test();
    const Shared second = added(first, "second");
    const Shared third = added(second, "third");
    EXPECT_FALSE(device_->lost());
    device_->wait(*first, {});  // finished before the loss
    const std::string message = message_of<DeviceError>([&] { device_->wait(*third, {}); });
    EXPECT_EQ(message.find("[second] the device was lost: "), 0u) << message;
    EXPECT_NE(message.find("; open a new vkrnn.Device"), std::string::npos) << message;
    EXPECT_TRUE(device_->lost());
    // Waiting again gives the same message; new work is refused.
    EXPECT_EQ(message_of<DeviceError>([&] { device_->wait(*first, {}); }), message);
    EXPECT_EQ(message_of<DeviceError>([&] { words_of(second); }), message);
    EXPECT_EQ(message_of<DeviceError>([&] { device_->synchronize({}); }), message);
    const std::string late = "the device was lost in an earlier call; open a new vkrnn.Device";
    EXPECT_EQ(message_of<DeviceError>([&] { put(Words{1}); }), "[Array] " + late);
    EXPECT_EQ(message_of<DeviceError>([&] { device_->clear(first, {}); }), "[Array] " + late);
    EXPECT_EQ(message_of<DeviceError>([&] { start(add_plan(100), {{.storage = first}}, {.storage = second}); }),
              "[test] " + late);
}

TEST_P(Arrays, DeviceLossMayShowInAnUploadThatWaits) {
    const Shared storage = put(counting(100));
    device_->lose_for_test();
    start(add_plan(100), {{.storage = storage}}, {.storage = device_->allocate(400, false)}, "reader");
    const Words words = counting(100);
    const auto upload = [&] { device_->upload({.host = nullptr, .storage = storage}, words.data(), 400, {}); };
    const auto synchronize = [&] { device_->synchronize({}); };
    if (!mapped_) {
        upload();  // copies through a ring, so it need not wait
    }
    const std::string message = mapped_ ? message_of<DeviceError>(upload) : message_of<DeviceError>(synchronize);
    EXPECT_EQ(message.find("[reader] the device was lost: "), 0u) << message;
    EXPECT_EQ(message_of<DeviceError>(synchronize), message);
}

TEST_P(Arrays, ClosedDevice) {
    const Shared storage = put(counting(1000));
    const Shared result = added(storage);
    device_->close();
    const std::string closed = "the device is closed; open a new vkrnn.Device";
    EXPECT_EQ(message_of<DeviceError>([&] { device_->wait(*storage, {}); }), "[Array] " + closed);
    EXPECT_EQ(message_of<DeviceError>([&] { words_of(storage); }), "[Array] " + closed);
    EXPECT_EQ(message_of<DeviceError>([&] { put(Words{1}); }), "[Array] " + closed);
    EXPECT_EQ(message_of<DeviceError>([&] { device_->clear(storage, {}); }), "[Array] " + closed);
    EXPECT_EQ(message_of<DeviceError>([&] { device_->synchronize({}); }), "[Device] " + closed);
    EXPECT_EQ(message_of<DeviceError>([&] { start(add_plan(9), {{.storage = storage}}, {.storage = result}); }),
              "[test] " + closed);
    EXPECT_GT(device_->statistics().bytes_allocated, 0u);  // memory of the arrays
    device_.reset();
    if (mapped_) {
        // close() waited for running calls, and the memory of arrays stays.
        const Words wanted = plus_one(counting(1000));
        EXPECT_EQ(std::memcmp(result->host(), wanted.data(), 4000), 0);
        EXPECT_EQ(std::memcmp(storage->host(), counting(1000).data(), 4000), 0);
    }
}

TEST_P(Arrays, NothingIsHeldAfterDeviceAndArrays) {
    Shared storage = put(counting(100000));
    device_->close();
    EXPECT_GE(device_->statistics().bytes_allocated, 400000u);
    storage.reset();
    EXPECT_EQ(device_->statistics().bytes_allocated, 0u);
}

TEST_P(Arrays, MemoryStaysFlat) {
    std::uint64_t held = 0;
    const Shared input = put(counting(30011));
    for (int call = 0; call < 600; ++call) {
        Shared last = input;
        for (int i = 0; i < 3; ++i) {
            last = added(last);  // earlier results are dropped while calls that read them run
        }
        if (call == 100) {
            held = device_->statistics().bytes_allocated;
        }
    }
    device_->synchronize({});
    EXPECT_EQ(device_->statistics().bytes_allocated, held);
}

TEST_P(Arrays, ADeviceMayBeClosedWhileOtherThreadsUseIt) {
    for (int round = 0; round < 5; ++round) {
        device_ = open_vulkan();
        std::atomic<int> started = 0;
        std::vector<std::thread> threads;
        for (int thread = 0; thread < 3; ++thread) {
            threads.emplace_back([&] {
                try {
                    for (;; ++started) {
                        const Shared input = put(counting(1000));
                        ASSERT_EQ(words_of(added(input)), plus_one(counting(1000)));
                    }
                } catch (const DeviceError& error) {
                    const std::string message = error.what();
                    EXPECT_NE(message.find("] the device is closed; open a new vkrnn.Device"), std::string::npos)
                        << message;
                }
            });
        }
        while (started < 20) {
            std::this_thread::yield();
        }
        device_->close();
        for (auto& thread : threads) {
            thread.join();
        }
        EXPECT_EQ(device_->statistics().bytes_allocated, 0u);
    }
}

}  // namespace
}  // namespace vkrnn::test
