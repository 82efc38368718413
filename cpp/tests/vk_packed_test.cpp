// What a call packs of an input array stays with the array for the calls to come, until the array changes.
#include <cstring>
#include "vk/packed.h"

#include "vk_plans.h"

namespace vkrnn::test {
namespace {

constexpr std::size_t kCount = 1000;
constexpr std::size_t kPackedBuffer = 1;

// result = input + 1, as add_plan, where what lies between is a packed copy.
Plan packing_plan(std::int64_t layout = 0, std::size_t count = kCount) {
    Plan plan = add_plan(count);
    plan.buffers[kPackedBuffer].role = Role::packed;
    plan.buffers[kPackedBuffer].packing = {0, {layout}};
    std::get<Dispatch>(plan.steps[0]).fills = kPackedBuffer;
    return plan;
}

// The same of two inputs, each with a result of its own.
Plan two_inputs_plan() {
    Plan plan = packing_plan();
    const std::uint64_t bytes = kCount * 4;
    plan.buffers.push_back(buffer("other x", Role::input, bytes));
    plan.buffers.push_back(buffer("other packed", Role::packed, bytes));
    plan.buffers.back().packing = {3, {0}};
    plan.buffers.push_back(buffer("other y", Role::result, bytes));
    Dispatch pack = add(3, 4, kCount, 0);
    pack.fills = 4;
    plan.steps.emplace_back(pack);
    plan.steps.emplace_back(add(4, 5, kCount, 1));
    plan.inputs.emplace_back(any(), 3);
    plan.results.push_back(5);
    return plan;
}

class Packed : public EitherMemory {
protected:
    Shared put(const Words& words) {
        auto storage = device_->allocate(words.size() * 4, true);
        write(storage, words);
        return storage;
    }
    // The answer to a call with the array, and how many dispatches that took.
    std::pair<Words, std::uint64_t> run(const SharedPlan& plan, const Shared& from, std::uint64_t offset = 0) {
        const Shared to = device_->allocate(plan->buffers[2].bytes, false);
        const InputOperand input{.storage = from, .offset = offset};
        const ResultOperand result{.storage = to};
        const std::uint64_t before = device_->statistics().dispatches;
        device_->run(plan, {&input, 1}, {&result, 1}, false, "test", {});
        return {read(to), device_->statistics().dispatches - before};
    }
    static std::pair<Words, std::uint64_t> packed_anew(const Words& words) { return {plus_one(words), 2}; }
    static std::pair<Words, std::uint64_t> packed_before(const Words& words) { return {plus_one(words), 1}; }

    const Words words_ = counting(kCount), others_ = Words(kCount, 77);
    const SharedPlan plan_ = std::make_shared<const Plan>(packing_plan());
};
INSTANTIATE_TEST_SUITE_P(Memory, Packed, testing::Values(false, true),
                         [](const auto& instance) { return instance.param ? "staging" : "direct"; });

TEST_P(Packed, StaysUntilTheArrayChanges) {
    const Shared from = put(words_), other = put(others_);
    for (int round = 0; round < 3; ++round) {
        write(from, words_);
        EXPECT_EQ(run(plan_, from), packed_anew(words_));
        for (int call = 0; call < 4; ++call) {
            EXPECT_EQ(run(plan_, from), packed_before(words_)) << call;
        }
        device_->copy({.host = nullptr, .storage = from}, {.host = nullptr, .storage = other}, kCount * 4, {});
        EXPECT_EQ(run(plan_, from), packed_anew(others_));
        EXPECT_EQ(run(plan_, from), packed_before(others_));
        device_->clear(from, {});
        EXPECT_EQ(run(plan_, from), packed_anew(Words(kCount, 0)));
        EXPECT_EQ(run(plan_, from), packed_before(Words(kCount, 0)));
        // The result of a call.
        const InputOperand input{.storage = other};
        const ResultOperand result{.storage = from};
        device_->run(std::make_shared<const Plan>(add_plan(kCount)), {&input, 1}, {&result, 1}, false, "test", {});
        EXPECT_EQ(run(plan_, from), packed_anew(Words(kCount, 78)));
        EXPECT_EQ(run(plan_, from), packed_before(Words(kCount, 78)));
    }
}

TEST_P(Packed, IsNotKeptWhileTheHostMayWrite) {
    const Shared from = put(words_);
    EXPECT_EQ(run(plan_, from), packed_anew(words_));
    EXPECT_EQ(run(plan_, from), packed_before(words_));
    if (from->host() == nullptr) {
        return;
    }
    {
        const HostView view(from), another(from);
        for (std::uint32_t call = 0; call < 4; ++call) {
            std::memcpy(from->host(), &call, sizeof(call));
            Words words = words_;
            words[0] = call;
            EXPECT_EQ(run(plan_, from), packed_anew(words));
        }
        std::memset(from->host(), 0, kCount * 4);
    }
    EXPECT_EQ(run(plan_, from), packed_anew(Words(kCount, 0)));
    EXPECT_EQ(run(plan_, from), packed_before(Words(kCount, 0)));
}

TEST_P(Packed, IsOfOnePartAndLayout) {
    Words both = words_;
    both.insert(both.end(), others_.begin(), others_.end());
    const Shared from = put(both);
    const auto same = std::make_shared<const Plan>(packing_plan());
    const auto other_layout = std::make_shared<const Plan>(packing_plan(1));
    EXPECT_EQ(run(plan_, from), packed_anew(words_));
    EXPECT_EQ(run(plan_, from, kCount * 4), packed_anew(others_));
    EXPECT_EQ(run(other_layout, from), packed_anew(words_));
    EXPECT_EQ(run(same, from), packed_before(words_));
    EXPECT_EQ(run(same, from, kCount * 4), packed_before(others_));
    EXPECT_EQ(run(other_layout, from), packed_before(words_));
    // So many bytes of it.
    const auto shorter = std::make_shared<const Plan>(packing_plan(0, kCount / 2));
    EXPECT_EQ(run(shorter, from), packed_anew(Words(words_.begin(), words_.begin() + kCount / 2)));
}

TEST_P(Packed, IsForgottenInTimeAndGoesWithTheArray) {
    const std::size_t count = 1'000'000;
    const Words words = counting(count);
    Shared from = put(words);
    const auto layout = [&](std::size_t number) {
        return std::make_shared<const Plan>(packing_plan(static_cast<std::int64_t>(number), count));
    };
    const auto first = layout(0);
    EXPECT_EQ(run(first, from), packed_anew(words));
    for (std::size_t number = 1; number < vk::PackedCopies::kMost; ++number) {
        EXPECT_EQ(run(layout(number), from), packed_anew(words));
    }
    EXPECT_EQ(run(first, from), packed_before(words));
    const std::uint64_t held = device_->statistics().bytes_allocated;
    for (std::size_t number = vk::PackedCopies::kMost; number < 2 * vk::PackedCopies::kMost; ++number) {
        EXPECT_EQ(run(layout(number), from), packed_anew(words));
    }
    EXPECT_EQ(run(first, from), packed_anew(words));
    EXPECT_LE(device_->statistics().bytes_allocated, held + 2 * count * 4);
    from = put(words);
    EXPECT_EQ(run(first, from), packed_anew(words));
    EXPECT_LE(device_->statistics().bytes_allocated, held + 2 * count * 4);
}

TEST_P(Packed, IsPackedAgainAfterAnInterruptedCall) {
    Plan plan = packing_plan();
    plan.buffers.push_back(buffer("state", Role::scratch, 4));
    plan.buffers.push_back(buffer("params", Role::constant, 8, make_block(place(3, 0), 1)));
    plan.kernels.push_back({"fold", {1}});
    const Dispatch step{
        .label = "step", .kernel = 2, .push = make_block(FoldPush{place(4, 0), -1, 0}, 1), .counter = 8};
    plan.steps.insert(plan.steps.begin(), Loop{1'000'000'000, 0, 1, {step}});
    const Shared from = put(words_), to = put(words_);
    const InputOperand input{.storage = from};
    const ResultOperand result{.storage = to};
    const auto interrupted = [&] {
        device_->run(std::make_shared<const Plan>(plan), {&input, 1}, {&result, 1}, false, "slow", [] { return true; });
    };
    EXPECT_THROW(interrupted(), Interrupted);
    EXPECT_EQ(run(plan_, from), packed_anew(words_));
    EXPECT_EQ(run(plan_, from), packed_before(words_));
    write(from, others_);
    EXPECT_THROW(interrupted(), Interrupted);
    EXPECT_EQ(run(plan_, from), packed_anew(others_));
}

TEST_P(Packed, OfAnArrayGivenTwiceIsKeptOnce) {
    const auto plan = std::make_shared<const Plan>(two_inputs_plan());
    const Shared same = put(words_), other = put(others_);
    for (const auto& [first, second] : {std::pair(same, same), std::pair(same, other), std::pair(other, same)}) {
        for (int call = 0; call < 4; ++call) {
            const Shared to = put(words_), other_to = put(words_);
            const InputOperand inputs[] = {{.storage = first}, {.storage = second}};
            const ResultOperand results[] = {{.storage = to}, {.storage = other_to}};
            const std::uint64_t before = device_->statistics().dispatches;
            device_->run(plan, inputs, results, false, "test", {});
            EXPECT_EQ(read(to), plus_one(first == same ? words_ : others_));
            EXPECT_EQ(read(other_to), plus_one(second == same ? words_ : others_));
            if (call > 0) {
                EXPECT_EQ(device_->statistics().dispatches - before, first == second ? 3u : 2u);
            }
        }
    }
}

TEST_P(Packed, IsOfArraysOnly) {
    for (int call = 0; call < 4; ++call) {
        const std::uint64_t before = device_->statistics().dispatches;
        EXPECT_EQ(test::run(*device_, *plan_, call % 2 == 0 ? words_ : others_),
                  plus_one(call % 2 == 0 ? words_ : others_));
        EXPECT_EQ(device_->statistics().dispatches - before, 2u);
    }
}

}  // namespace
}  // namespace vkrnn::test
