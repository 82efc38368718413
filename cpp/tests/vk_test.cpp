// Tests calls through the public interface of the Vulkan layer. Each test opens its own device.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "polls.h"
#include "vk_plans.h"

namespace vkrnn::test {
namespace {

// Runs a test twice: with mapped memory, if the device has any, and through staging.
class Call : public Vulkan, public testing::WithParamInterface<bool> {
protected:
    const Variable staging_{"VKRNN_STAGING", GetParam() ? "1" : "0"};
    const std::shared_ptr<Device> device_ = open_vulkan();
};
INSTANTIATE_TEST_SUITE_P(Memory, Call, testing::Values(false, true),
                         [](const auto& instance) { return instance.param ? "staging" : "direct"; });

TEST_P(Call, CopiesInAndOut) {
    for (const std::size_t count : {1, 63, 64, 65, 997, 300007}) {
        expect_adds(*device_, count);
    }
    const Statistics statistics = device_->statistics();
    EXPECT_EQ(statistics.calls, 6u);
    const bool staged = GetParam() || !device_->profile().unified_memory;
    EXPECT_EQ(statistics.submissions, staged ? 7u : 6u);  // a large result is downloaded separately
    EXPECT_EQ(statistics.dispatches, 12u);
    EXPECT_EQ(statistics.pipelines, 2u);
    EXPECT_EQ(statistics.bytes_uploaded + statistics.bytes_imported, statistics.bytes_downloaded);
    EXPECT_EQ(statistics.bytes_imported != 0, !staged);
    EXPECT_GT(statistics.last_host_seconds, 0);
    EXPECT_LE(statistics.last_device_seconds, statistics.last_host_seconds);
}

TEST_P(Call, TakesEmptyBuffersAndPlans) {
    EXPECT_EQ(run(*device_, add_plan(0), {}), Words());
    Plan nothing;
    device_->run(std::make_shared<const Plan>(nothing), {}, {}, true, "", {});
}

TEST_P(Call, RunsLoopsInOrder) {
    EXPECT_EQ(run(*device_, fold_plan(0), {}), Words{0});
    EXPECT_EQ(run(*device_, fold_plan(1, 42), {}), Words{42});
    EXPECT_EQ(run(*device_, fold_plan(101), {}), Words{fold(101)});
    EXPECT_EQ(run(*device_, fold_plan(101, 100, -1), {}), Words{fold(101, 100, -1)});
}

TEST_P(Call, LeavesOutWavefrontsOnceWaitsHaveFailed) {
    // Stands for a plan with a wavefront, in which a wait fails each time.
    Plan failing = add_plan(100);
    failing.buffers.push_back(buffer("failed waits", Role::failed_waits, 4));
    failing.steps.emplace_back(add(0, 3, 1));
    const Plan only = failing;
    failing.in_turn = {std::make_shared<const Plan>(add_plan(100))};
    const auto dispatched_by = [&](const Plan& plan) {
        const std::uint64_t before = device_->statistics().dispatches;
        EXPECT_EQ(run(*device_, plan, counting(100)), plus_one(counting(100)));
        return device_->statistics().dispatches - before;
    };
    for (std::uint64_t failures = 0; failures < 3; ++failures) {
        EXPECT_EQ(device_->statistics().failed_waits, failures);
        EXPECT_EQ(dispatched_by(failing), 3u);
    }
    EXPECT_EQ(dispatched_by(failing), 2u);
    EXPECT_EQ(dispatched_by(only), 3u);
    EXPECT_EQ(device_->statistics().failed_waits, 4u);
    // A process reports it once, and this test may run twice.
    if (!GetParam()) {
        EXPECT_EQ(std::ranges::count(take_reports(), Severity::warning, &Report::severity), 1);
    }
}

TEST_P(Call, SplitsLongLoops) {
    constexpr std::int64_t kSteps = 60000;
    EXPECT_EQ(run(*device_, fold_plan(kSteps, -7, 3), {}), Words{fold(kSteps, -7, 3)});
    const Statistics statistics = device_->statistics();
    EXPECT_EQ(statistics.dispatches, static_cast<std::uint64_t>(kSteps));
    EXPECT_GT(statistics.submissions, 1u);
}

TEST_P(Call, ClearsAfterAndBeforeDispatches) {
    // temporary = x + 8; temporary = 0; y = temporary - 7. Then y again, from a buffer that was cleared after it was
    // read.
    Plan plan = add_plan(1000);
    plan.steps = {plan.steps[0], Clear{1}, plan.steps[1]};
    EXPECT_EQ(run(*device_, plan, counting(1000)), Words(1000, static_cast<std::uint32_t>(-7)));
    plan.steps.emplace_back(Clear{2});
    EXPECT_EQ(run(*device_, plan, counting(1000)), Words(1000, 0));
}

TEST_P(Call, DispatchesWithoutABarrierMayOverlap) {
    // Two independent halves of one result; the second does not wait for the first.
    Plan plan = add_plan(512);
    auto first = std::get<Dispatch>(plan.steps[0]);
    auto second = std::get<Dispatch>(plan.steps[1]);
    first.push = make_block(AddPush{reference_to(0, 0), reference_to(2, 0), 256, 0});
    second.push = make_block(AddPush{reference_to(0, 1024), reference_to(2, 1024), 256, 0});
    second.after = false;
    plan.steps = {first, second};
    const Words result = run(*device_, plan, Words(512, 10));
    EXPECT_EQ(result.front(), 18u);
    EXPECT_EQ(result.back(), 3u);
}

TEST_P(Call, StopsWhenThePollReturnsTrue) {
    const PollsAlways polls;
    int asked = 0;
    const Poll stop = [&] { return ++asked == 2; };
    constexpr std::int64_t kSteps = 100'000;
    EXPECT_THROW(run(*device_, fold_plan(kSteps), {}, stop), Interrupted);
    EXPECT_EQ(asked, 2);
    EXPECT_LT(device_->statistics().dispatches, static_cast<std::uint64_t>(kSteps));
    expect_adds(*device_, 100);
}

TEST_P(Call, PassesOnThePollsExceptions) {
    const PollsAlways polls;
    const Poll fail = []() -> bool { throw std::domain_error("from poll"); };
    EXPECT_THROW(run(*device_, fold_plan(100'000), {}, fail), std::exception);
    expect_adds(*device_, 100);
}

// A poll runs signal handlers. One may use the device, but not while its thread records commands.
TEST_P(Call, ACallWithinAnotherIsRefused) {
    const PollsAlways polls;
    expect_adds(*device_, 100);
    std::string use, closing;
    const Poll call = [&] {
        use = message_of<DeviceError>([&] { run(*device_, add_plan(5), counting(5)); });
        closing = message_of<DeviceError>([&] { device_->close(); });
        return true;
    };
    EXPECT_THROW(run(*device_, fold_plan(100'000), {}, call), Interrupted);
    const std::string expected = "the device is busy with another call of this thread, which a signal interrupted";
    EXPECT_EQ(use, "[test] " + expected);
    EXPECT_EQ(closing, "[Device] " + expected);
    expect_adds(*device_, 100);
}

TEST_P(Call, LostDevice) {
    expect_adds(*device_, 100);
    device_->lose_for_test();
    const auto add_one = [&] { run(*device_, add_plan(5), counting(5)); };
    EXPECT_FALSE(device_->lost());
    const std::string message = message_of<DeviceError>(add_one);
    EXPECT_EQ(message.find("[test] the device was lost: "), 0u) << message;
    EXPECT_NE(message.find("; open a new vkrnn.Device"), std::string::npos) << message;
    EXPECT_TRUE(device_->lost());
    EXPECT_EQ(message_of<DeviceError>(add_one),
              "[test] the device was lost in an earlier call; open a new vkrnn.Device");
    expect_adds(*open_vulkan(), 100);
}

TEST_P(Call, ClosedDevice) {
    expect_adds(*device_, 100);
    device_->close();
    device_->close();
    EXPECT_TRUE(device_->closed());
    EXPECT_EQ(message_of<DeviceError>([&] { run(*device_, add_plan(5), counting(5)); }),
              "[test] the device is closed; open a new vkrnn.Device");
    const Statistics statistics = device_->statistics();
    EXPECT_EQ(statistics.calls, 1u);
    EXPECT_EQ(statistics.bytes_allocated, 0u);
    EXPECT_EQ(statistics.pipelines, 0u);
    expect_adds(*open_vulkan(), 100);
}

TEST_P(Call, TooLargeACall) {
    Plan plan = add_plan(100);
    for (int i = 0; i < 4096; ++i) {
        plan.steps.emplace_back(Clear{plan.buffers.size()});  // all at the same time: they share no memory
        plan.buffers.push_back(buffer("huge", Role::scratch, 1u << 30));
    }
    try {
        run(*device_, plan, counting(100));
        FAIL();
    } catch (const MemoryError& error) {
        const std::string message = error.what();
        EXPECT_EQ(message.find("[test] the call needs 4.0 TiB (4,398,046,512,"), 0u) << message;
        EXPECT_NE(message.find(" free on " + device_->profile().name), std::string::npos) << message;
        EXPECT_GT(error.asked, error.free);
        EXPECT_GT(error.free, 0u);
    }
    EXPECT_EQ(device_->statistics().bytes_allocated, 0u);
    expect_adds(*device_, 100);
}

TEST_P(Call, TooLargeATensor) {
    Plan plan = add_plan(100);
    const std::uint64_t limit = device_->profile().max_allocation;
    plan.buffers.push_back(buffer("projected", Role::scratch, limit + 4));
    const std::string message = message_of<MemoryError>([&] { run(*device_, plan, counting(100)); });
    // If the limit of one allocation exceeds the device's memory, the other message comes first.
    EXPECT_TRUE(message.find("[test] projected needs ") == 0 || message.find("[test] the call needs ") == 0) << message;
    EXPECT_EQ(device_->statistics().bytes_allocated, 0u);
    expect_adds(*device_, 100);
}

TEST_P(Call, MoreThanOneAllocation) {
    const std::uint64_t limit = device_->profile().max_allocation;
    if (limit > std::uint64_t{4} << 30) {
        GTEST_SKIP() << "one allocation may have " << limit << " bytes";
    }
    Plan plan = add_plan(1000);
    for (int i = 0; i < 3; ++i) {
        plan.buffers.insert(plan.buffers.begin() + 2, buffer("large", Role::scratch, limit / 4 * 3));
    }
    plan.steps = {add(0, 2, 1000), add(2, 4, 1000, 1), add(4, 5, 1000, 1)};
    plan.results = {5};
    Words expected = counting(1000);
    for (auto& word : expected) {
        word -= 6;
    }
    try {
        EXPECT_EQ(run(*device_, plan, counting(1000)), expected);
    } catch (const MemoryError& error) {
        GTEST_SKIP() << error.what();
    }
    expect_adds(*device_, 100);
    const auto held = device_->statistics().bytes_allocated;
    expect_adds(*device_, 100);
    EXPECT_EQ(run(*device_, plan, counting(1000)), expected);
    EXPECT_EQ(device_->statistics().bytes_allocated, held);
}

TEST_P(Call, MemoryStaysFlatOverMixedCalls) {
    std::uint64_t after_the_first_round = 0;
    for (std::size_t call = 0; call < 2000; ++call) {
        const std::size_t count = 1 + call * 7919 % 20011;
        if (call % 3 == 0) {
            EXPECT_EQ(run(*device_, fold_plan(3), {}), Words{fold(3)});
        } else {
            expect_adds(*device_, count);
        }
        if (call == 1000) {
            after_the_first_round = device_->statistics().bytes_allocated;
        }
    }
    EXPECT_EQ(device_->statistics().bytes_allocated, after_the_first_round);
    EXPECT_EQ(device_->statistics().pipelines, 3u);
}

TEST_P(Call, ThreadsTakeTurns) {
    std::vector<std::thread> threads;
    std::atomic<int> right = 0;
    for (std::size_t thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&, thread] {
            for (std::size_t call = 0; call < 25; ++call) {
                const Words words = counting(10 + thread * 1000 + call);
                right += run(*device_, add_plan(words.size()), words) == plus_one(words);
            }
        });
    }
    for (auto& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(right, 100);
}

TEST_P(Call, AThreadThatWaitsMayBeInterrupted) {
    std::atomic<bool> running = false, enough = false;
    std::thread other([&] {
        const Poll poll = [&] {
            running = true;
            return enough.load();
        };
        EXPECT_THROW(run(*device_, fold_plan(1'000'000'000), {}, poll), Interrupted);
    });
    while (!running) {
        std::this_thread::yield();
    }
    EXPECT_THROW(run(*device_, add_plan(5), counting(5), [] { return true; }), Interrupted);
    enough = true;
    other.join();
    expect_adds(*device_, 100);
}

TEST_P(Call, RefusesPlansThatContradictThemselves) {
    const auto refuses = [&](const Plan& plan) {
        const std::string message = message_of<Error>([&] { run(*device_, plan, counting(100)); });
        EXPECT_EQ(message.find("[test] internal error: "), 0u) << message;
    };
    Plan plan = add_plan(100);
    plan.kernels[0].shader = "nonesuch";
    EXPECT_EQ(message_of<Error>([&] { run(*device_, plan, counting(100)); }),
              "[test] internal error: there is no shader named 'nonesuch'");
    plan = add_plan(100);
    std::get<Dispatch>(plan.steps[0]).kernel = 7;
    refuses(plan);
    plan = add_plan(100);
    plan.steps[0] = add(0, 9, 100);
    refuses(plan);
    plan = add_plan(100);
    plan.steps.emplace_back(Clear{3});
    refuses(plan);
    plan = add_plan(100);
    plan.inputs[0].second = 1;
    refuses(plan);
    plan = add_plan(100);
    std::get<Dispatch>(plan.steps[0]).push.bytes.resize(132);
    refuses(plan);
    plan = fold_plan(3);
    std::get<Loop>(plan.steps[1]).body[0].counter = 16;
    refuses(plan);
    expect_adds(*device_, 100);
}

}  // namespace
}  // namespace vkrnn::test
