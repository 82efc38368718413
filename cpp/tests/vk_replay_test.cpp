// Tests that repeated calls of a plan on the same memory are recorded once and replayed with right results.
#include <gtest/gtest.h>

#include <numeric>

#include "polls.h"
#include "vk/commands/recorder.h"
#include "vk/commands/transfer.h"
#include "vk/memory/pool.h"
#include "vk_plans.h"

namespace vkrnn::test {
namespace {

class Replays : public EitherMemory {
protected:
    static SharedPlan shared(Plan plan) { return std::make_shared<const Plan>(std::move(plan)); }

    Shared room(std::size_t words) { return device_->allocate(words * 4, false); }
    void start(const SharedPlan& plan, const Shared& from, const Shared& to, const char* label = "test") {
        const InputLocation input{.storage = from};
        const ResultLocation result{.storage = to};
        device_->run(plan, {&input, 1}, {&result, 1}, false, label, {});
    }
    [[nodiscard]] std::uint64_t replayed() const { return device_->statistics().replayed; }
};
INSTANTIATE_TEST_SUITE_P(Memory, Replays, testing::Values(false, true),
                         [](const auto& instance) { return instance.param ? "staging" : "direct"; });

TEST_P(Replays, ReadTheCurrentContents) {
    const std::size_t count = 1000;
    const SharedPlan plan = shared(add_plan(count));
    const Shared from = room(count), to = room(count);
    for (std::uint32_t call = 0; call < 6; ++call) {
        Words words(count);
        std::iota(words.begin(), words.end(), call * 100);
        write(from, words);
        start(plan, from, to);
        EXPECT_EQ(read(to), plus_one(words));
        // The first call is noted, the second one is recorded for the cache.
        EXPECT_EQ(replayed(), call < 2 ? 0 : call - 1);
    }
    const Statistics statistics = device_->statistics();
    EXPECT_EQ(statistics.calls, 6u);
    EXPECT_EQ(statistics.dispatches, 12u);
    EXPECT_GT(statistics.last_device_seconds, 0.0);
}

TEST_P(Replays, MayRunAtTheSameTime) {
    const std::size_t count = 5000;
    const SharedPlan plan = shared(add_plan(count));
    const Shared here = room(count), there = room(count);
    write(here, Words(count, 7));
    for (int call = 0; call < 100; ++call) {
        start(plan, here, there);
        start(plan, there, here);
    }
    EXPECT_EQ(read(here), Words(count, 207));
    EXPECT_EQ(replayed(), 196u);
}

TEST_P(Replays, BelongToOnePlanAndOneMemory) {
    const std::size_t count = 300;
    const SharedPlan plan = shared(add_plan(count)), other_plan = shared(add_plan(count));
    std::vector<Shared> rooms;
    for (int i = 0; i < 5; ++i) {
        rooms.push_back(room(count));
        write(rooms.back(), Words(count, 0));
    }
    for (std::uint32_t call = 1; call < 40; ++call) {
        for (std::size_t i = 0; i + 1 < rooms.size(); ++i) {
            write(rooms[i], Words(count, call * 10));
            start(i % 2 == 0 ? plan : other_plan, rooms[i], rooms[i + 1], i < 2 ? "one" : "another");
            ASSERT_EQ(read(rooms[i + 1]), Words(count, call * 10 + 1));
        }
    }
    EXPECT_EQ(replayed(), 37u * 4);
}

TEST_P(Replays, UsePrepackedWeightsUntilTheArrayIsWritten) {
    constexpr std::size_t kCount = 300;
    Plan packing = add_plan(kCount);
    packing.buffers[1].role = Role::prepacked;
    packing.buffers[1].prepacking = {0, {1}};
    std::get<Dispatch>(packing.steps[0]).fills = 1;
    const SharedPlan plan = shared(packing);
    const Shared from = room(kCount), other = room(kCount), to = room(kCount);
    write(other, Words(kCount, 5));
    for (std::uint32_t round = 0; round < 3; ++round) {
        write(from, Words(kCount, round));
        for (int call = 0; call < 5; ++call) {
            const std::uint64_t before = device_->statistics().dispatches;
            start(plan, from, to);
            EXPECT_EQ(read(to), Words(kCount, round + 1));
            EXPECT_EQ(device_->statistics().dispatches - before, call == 0 ? 2u : 1u) << "call " << call;
            start(plan, other, to);  // has its own copy
            EXPECT_EQ(read(to), Words(kCount, 6));
        }
    }
    EXPECT_GT(replayed(), 0u);
    // An input in host memory is packed again in each call.
    const std::uint64_t before = device_->statistics().dispatches;
    for (std::uint32_t call = 0; call < 3; ++call)
        EXPECT_EQ(run(*device_, packing, Words(kCount, call)), Words(kCount, call + 1));
    EXPECT_EQ(device_->statistics().dispatches - before, 6u);
}

// Makes more calls than the cache holds, and allocates and frees memory between them.
TEST_P(Replays, AreDroppedFromTheCache) {
    const SharedPlan plan = shared(add_plan(100)), large = shared(add_plan(2'000'000));
    std::vector<Shared> results;
    for (int i = 0; i < 50; ++i) {
        results.push_back(room(100));
    }
    const Shared from = room(100);
    write(from, counting(100));
    for (int round = 0; round < 4; ++round) {
        for (const Shared& to : results) {
            start(plan, from, to);
            start(plan, from, to);
            start(plan, from, to);
            EXPECT_EQ(read(to), plus_one(counting(100)));
        }
        // Scratch that does not fit replaces the arena's blocks, which cached commands refer to.
        const Shared wide = room(2'000'000), wider = room(2'000'000);
        write(wide, counting(2'000'000));
        for (int call = 0; call < 3; ++call) {
            start(large, wide, wider);
        }
        EXPECT_TRUE(read(wider) == plus_one(counting(2'000'000)));
        results.erase(results.begin(), results.begin() + 5);
    }
    EXPECT_GE(replayed(), 50u);
}

TEST_P(Replays, WorkAfterAnInterruptedCall) {
    const std::size_t count = 2000;
    const SharedPlan plan = shared(add_plan(count));
    const Shared from = room(count), to = room(count), state = room(1);
    write(from, counting(count));
    for (int call = 0; call < 3; ++call) {
        start(plan, from, to);
    }
    const ResultLocation result{.storage = state};
    const SharedPlan slow = shared(fold_plan(1'000'000'000));
    EXPECT_THROW(device_->run(slow, {}, {&result, 1}, false, "slow", [] { return true; }), Interrupted);
    for (std::uint32_t call = 0; call < 3; ++call) {
        write(from, Words(count, call));
        start(plan, from, to);
        EXPECT_EQ(read(to), Words(count, call + 1));
    }
    EXPECT_EQ(replayed(), 4u);
}

// Calls with many command buffers are not cached, so that they can be interrupted between two.
TEST_P(Replays, HaveOneCommandBuffer) {
    const SharedPlan plan = shared(fold_plan(30000));
    const Shared state = room(1);
    const ResultLocation result{.storage = state};
    for (int call = 0; call < 4; ++call) {
        device_->run(plan, {}, {&result, 1}, false, "test", {});
        EXPECT_EQ(read(state), Words{fold(30000)});
    }
    EXPECT_EQ(replayed(), 0u);
}

// A long call is submitted as a whole, and the caller waits later. A poll is due between two command buffers, and at
// each wait.
TEST_P(Replays, ReturnBeforeTheyAreDone) {
    const PollsAlways always;
    const SharedPlan plan = shared(fold_plan(20'000));
    const Shared state = room(1);
    const ResultLocation result{.storage = state};
    std::uint64_t polls = 0;
    device_->run(plan, {}, {&result, 1}, false, "test", [&] {
        ++polls;
        return false;
    });
    const std::uint64_t submissions = device_->statistics().submissions;
    EXPECT_GT(submissions, 2u);
    EXPECT_EQ(polls, submissions - 1);
    EXPECT_EQ(read(state), Words{fold(20'000)});
}

// A cache for few pipelines, so that they are dropped while running calls refer to them.
class FewPipelines : public Vulkan {
protected:
    static constexpr std::size_t kFew = 4, kWords = 1'000'000;

    // words += number, in place.
    static std::shared_ptr<const Plan> plan(std::uint32_t number) {
        Plan plan;
        plan.buffers = {buffer("words", Role::scratch, kWords * 4)};
        plan.kernels = {{"add", {number}}};
        plan.steps = {add(0, 0, kWords)};
        return std::make_shared<const Plan>(std::move(plan));
    }
    void run(const std::shared_ptr<const Plan>& plan) {
        stream_.start(1000, false);
        recorder_.run(plan, {&lease_.front().slice, 1}, {}, {}, {}, "test", {});
    }

    const std::shared_ptr<const vk::Context> context_ = vk::Context::get();
    const std::shared_ptr<const vk::LogicalDevice> device_ =
        std::make_shared<vk::LogicalDevice>(vk::SelectedDevice{context_, context_->candidates().at(0)});
    const std::shared_ptr<vk::Timeline> timeline_ = std::make_shared<vk::Timeline>(device_, device_->compute_queue());
    vk::Pool pool_{timeline_, vk::Use::device};
    vk::Pool::Pieces lease_ = pool_.take(kWords * 4, true);
    vk::Pipelines pipelines_{*timeline_, kFew};
    vk::Workers workers_{0};
    vk::CommandStream stream_{*timeline_};
    vk::Transfer transfer_{*timeline_, stream_, workers_};
    vk::Recorder recorder_{pool_, pipelines_, stream_};
};

TEST_F(FewPipelines, AreEnoughForRunningCalls) {
    constexpr std::uint32_t kPlans = 50;  // more than the cache of command buffers holds
    const vk::Slice words = lease_.front().slice.part(0, kWords * 4);
    Words seen(kWords, 7);
    transfer_.upload(words, seen.data(), {});
    transfer_.submitted(stream_.submit());
    std::vector<std::shared_ptr<const Plan>> plans;
    for (std::uint32_t number = 1; number <= kPlans; ++number) {
        plans.push_back(plan(number));
        run(plans.back());
        EXPECT_EQ(pipelines_.size(), std::min<std::size_t>(number, kFew));
    }
    for (int round = 0; round < 2; ++round) {
        for (const auto& each : plans) {  // the commands are cached, then dropped for those of later plans
            run(each);
            EXPECT_LE(pipelines_.size(), kFew + vk::CommandBufferCache::kCapacity);
        }
    }
    for (int call = 0; call < 3; ++call) {
        run(plans.front());
    }
    EXPECT_GT(recorder_.replayed(), 0u);
    transfer_.download(seen.data(), words, {});
    EXPECT_TRUE(seen == Words(kWords, 7 + 3 * (kPlans * (kPlans + 1) / 2) + 3));
    timeline_->settle(timeline_->submitted());
}

}  // namespace
}  // namespace vkrnn::test
