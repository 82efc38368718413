// Makes every Vulkan call that can fail, and every allocation of the core, fail once. Each failure is an error of the
// documented class or has no effect, and afterwards everything works.
#include <gtest/gtest.h>

#include <functional>

#include "scale.h"
#include "vk_faults.h"
#include "vk_plans.h"

namespace vkrnn::test {
namespace {

class Failing : public EitherMemory {
protected:
    using Action = std::function<void()>;

    struct Fault {
        VkResult error;
        std::uint64_t number;  // number of the call that fails
    };

    // Returns the ways in which a device is used. Each can be tried again after it has failed.
    std::vector<std::pair<std::string, Action>> actions() {
        return {
            {"open", [&] { device_ = open_vulkan(); }},
            {"small call", [&] { expect_adds(*device_, 1000); }},
            {"large call", [&] { expect_adds(*device_, 600'007); }},
            {"call in parts", [&] { call_in_parts(); }},
            {"copies up and down", [&] { copy_up_and_down(); }},
            {"copy and clear", [&] { copy_and_clear(); }},
            {"calls on arrays", [&] { call_on_arrays(); }},
            {"memory that the host sees", [&] { return_to_the_host(); }},
            {"memory that grows during a call", [&] { grow_during_a_call(); }},
            {"dropped arrays", [&] { drop_during_a_call(); }},
            {"statistics", [&] { count_calls(); }},
            {"close during a call", [&] { close_during_a_call(); }},
            {"close after a call", [&] { close_after_a_call(); }},
        };
    }

    // Runs the action on a new device, on which the Vulkan call of `fault` fails. Returns whether that call was
    // reached.
    bool does(const Action& action, const Fault& fault, const std::string& where) {
        Faults& faults = Faults::get();
        const std::int64_t objects = faults.objects();
        device_ = open_vulkan();
        faults.arm(fault.error, fault.number);
        try {
            action();
        } catch (const std::exception&) {
            expect_documented(fault.error, where);
        }
        faults.disarm();
        const bool lost = device_->lost();
        if (lost) {
            const std::string late = "[Array] the device was lost in an earlier call; open a new vkrnn.Device";
            EXPECT_EQ(message_of<DeviceError>([&] { device_->allocate(4, false); }), late);
        }
        if (lost || device_->closed()) {
            device_->close();
            EXPECT_EQ(device_->statistics().bytes_allocated, 0u);
            device_ = open_vulkan();
        }
        action();
        if (!device_->closed()) {
            expect_adds(*device_, 100);
        }
        device_->close();
        EXPECT_EQ(device_->statistics().bytes_allocated, 0u);
        device_.reset();
        EXPECT_EQ(faults.objects(), objects) << "after a failure of " << faults.failed();
        return !faults.failed().empty();
    }

    // Checks the exception being handled.
    void expect_documented(VkResult error, const std::string& where) {
        const std::string function = Faults::get().failed();
        try {
            throw;
        } catch (const MemoryError& caught) {
            EXPECT_TRUE(error == VK_ERROR_OUT_OF_DEVICE_MEMORY || error == VK_ERROR_OUT_OF_HOST_MEMORY)
                << where << ", " << function << ": " << caught.what();
        } catch (const DeviceError& caught) {
            EXPECT_TRUE(error == VK_ERROR_DEVICE_LOST || error == VK_ERROR_UNKNOWN || where.starts_with("open"))
                << where << ", " << function << ": " << caught.what();
        } catch (const std::exception& caught) {
            ADD_FAILURE() << where << ", " << function << ": " << caught.what();
        }
    }

    static SharedPlan shared(Plan plan) { return std::make_shared<const Plan>(std::move(plan)); }
    Shared room(std::size_t words) { return device_->allocate(words * 4, true); }
    void start(const SharedPlan& plan, const Shared& from, const Shared& to) {
        const InputLocation input{.storage = from};
        const ResultLocation result{.storage = to};
        device_->run(plan, {&input, plan->inputs.size()}, {&result, 1}, false, "test", {});
    }
    Shared start_slow() {
        Shared state = room(1);
        start(shared(fold_plan(kSlow)), nullptr, state);
        return state;
    }

    void call_in_parts() {
        Plan plan = fold_plan(kLong);
        plan.flops = 1e12;  // large, so that a command buffer has few dispatches
        EXPECT_EQ(run(*device_, plan, {}), Words{fold(kLong)});
    }
    void copy_up_and_down() {
        for (const std::size_t words : {1000, 600'000}) {  // the larger one is copied in parts
            const Shared array = room(words);
            write(array, counting(words));
            EXPECT_TRUE(read(array) == counting(words));
        }
    }
    void copy_and_clear() {
        const Shared from = room(1000), to = room(1000);
        write(from, counting(1000));
        device_->copy({.storage = to}, {.storage = from}, 4000, {});
        device_->clear(from, {});
        EXPECT_EQ(read(to), counting(1000));
        EXPECT_EQ(read(from), Words(1000, 0));
    }
    void call_on_arrays() {
        const SharedPlan plan = shared(add_plan(1000));
        const Shared from = room(1000), to = room(1000);
        write(from, counting(1000));
        for (int call = 0; call < 4; ++call) {  // recorded, recorded for the cache, replayed, replayed
            start(plan, from, to);
        }
        device_->wait(*to, {});
        EXPECT_EQ(read(to), plus_one(counting(1000)));
    }
    void return_to_the_host() {
        const Shared result = device_->allocate_for_host(4000);
        const Words words = counting(1000);
        const InputLocation input{words.data()};
        if (!result) return;  // then it is copied to ordinary memory
        const ResultLocation location{.storage = result};
        device_->run(shared(add_plan(1000)), {&input, 1}, {&location, 1}, true, "test", {});
        EXPECT_EQ(Words(reinterpret_cast<const std::uint32_t*>(result->host()),
                        reinterpret_cast<const std::uint32_t*>(result->host()) + 1000),
                  plus_one(words));
    }
    // The memory with the first call's constants is replaced by a larger one.
    void grow_during_a_call() {
        const Shared state = start_slow();
        expect_adds(*device_, 40'000);
        EXPECT_EQ(read(state), Words{fold(kSlow)});
    }
    void drop_during_a_call() {
        {
            const Shared from = room(kLarge), to = room(kLarge);
            write(from, counting(kLarge));
            start_slow();
            start(shared(add_plan(kLarge)), from, to);
        }
        const Shared next = room(kLarge);
        write(next, counting(kLarge));
        EXPECT_EQ(read(next), counting(kLarge));
    }
    void count_calls() {
        start_slow();
        device_->synchronize({});
        EXPECT_GT(device_->statistics().calls, 0u);
    }
    void close_during_a_call() {
        start_slow();
        device_->close();
    }
    void close_after_a_call() {
        start_slow();
        device_->synchronize({});
        device_->close();
    }

    static constexpr std::size_t kLarge = 20'000;  // words: more than a small piece of a pool
    static constexpr std::int64_t kLong = 100, kSlow = 150;
};
INSTANTIATE_TEST_SUITE_P(Memory, Failing, testing::Values(false, true),
                         [](const auto& instance) { return instance.param ? "staging" : "direct"; });

TEST_P(Failing, CallsOfVulkan) {
    device_.reset();
    int injected = 0;
    std::vector<VkResult> errors{VK_ERROR_OUT_OF_DEVICE_MEMORY};
    if (full() || !GetParam()) errors.push_back(VK_ERROR_DEVICE_LOST);
    // Other errors of a driver are handled alike, so one kind of memory and every second call are enough.
    if (full() && !GetParam()) errors.push_back(VK_ERROR_UNKNOWN);
    // A short run has every second call: the odd ones with one kind of memory, the even ones with the other.
    const std::uint64_t stride = full() ? 1 : 2;
    for (const auto& [name, action] : actions()) {
        for (const VkResult error : errors) {
            std::uint64_t number = !full() && GetParam() ? 2 : 1;
            const auto reported = [&] {
                return error == VK_ERROR_UNKNOWN && number % 2 == 0 ? VK_ERROR_OUT_OF_HOST_MEMORY : error;
            };
            while (does(action, {reported(), number}, name)) {
                ASSERT_FALSE(HasFailure()) << name << ", call " << number << ", " << Faults::get().failed();
                ++injected;
                number += stride;
            }
        }
    }
    RecordProperty("injected", injected);
    EXPECT_GT(injected, full() ? 500 : 250);
}

// All failures of a use happen on one device, except for uses that open or close it.
TEST_P(Failing, Allocations) {
    const std::vector<std::pair<std::string, Action>> uses{
        {"open", [&] { device_ = open_vulkan(); }},
        {"calls on arrays", [&] { call_on_arrays(); }},
        {"copies up and down", [&] { copy_up_and_down(); }},
        {"memory that the host sees", [&] { return_to_the_host(); }},
        {"dropped arrays",
         [&] {
             const Shared from = room(kLarge), to = room(kLarge);
             start(shared(add_plan(kLarge)), from, to);
         }},
        {"close",
         [&] {
             {
                 const Allocations::Ignored before;
                 expect_adds(*device_, 1000);
             }
             device_->close();
         }},
    };
    std::int64_t injected = 0;
    for (const auto& [name, use] : uses) {
        device_.reset();
        const std::int64_t objects = Faults::get().objects();
        device_ = open_vulkan();
        for (int i = 0; i < 3 && !device_->closed(); ++i) use();  // makes everything that is made only once
        // After a use that failed early, the next one may find pieces still in use and take others, once.
        const std::uint64_t most = 2 * device_->statistics().bytes_allocated + (1 << 20);
        std::int64_t n = 0;
        for (bool failed = true; failed;) {
            if (device_->closed()) device_ = open_vulkan();
            Allocations::arm(++n, Allocations::Failing::one, Allocations::Threads::this_one);
            try {
                use();
            } catch (const MemoryError&) {
            } catch (const std::bad_alloc&) {
            } catch (const std::exception& error) {
                Allocations::disarm();
                ADD_FAILURE() << error.what();
            }
            failed = Allocations::disarm();
            if (device_->closed()) device_ = open_vulkan();
            use();
            if (!device_->closed()) device_->synchronize({});
            ASSERT_LE(device_->statistics().bytes_allocated, most) << name << ", allocation " << n;
            ASSERT_FALSE(HasFailure()) << name << ", allocation " << n;
        }
        injected += n - 1;
        device_->close();
        device_.reset();
        // Vulkan-Hpp leaks a device if it has no memory for its table of functions.
        EXPECT_EQ(Faults::get().objects(), objects + (name == "open" ? 1 : 0)) << name;
    }
    RecordProperty("injected", static_cast<int>(injected));
    EXPECT_GT(injected, 150);
}

// Memory that an array had before an allocation failed is available to the next one.
TEST_P(Failing, AllocationsOfArraysAgainAndAgain) {
    for (const std::size_t words : {kLarge, std::size_t{1}}) {
        // 4096 small pieces are allocated together.
        const std::uint64_t most = device_->statistics().bytes_allocated + (words == 1 ? 1 << 20 : 100'000);
        for (const std::int64_t n : {1, 2, 3, 4, 5, 6, 50})
            for (int time = 0; time < 10; ++time) {
                Allocations::arm(n, Allocations::Failing::one, Allocations::Threads::this_one);
                try {
                    room(words);
                } catch (const MemoryError&) {
                }
                Allocations::disarm();
            }
        EXPECT_LE(device_->statistics().bytes_allocated, most) << words;
    }
}

// Memory for copies that a failed call had reserved is available to later calls.
TEST_P(Failing, CallsAgainAndAgain) {
    constexpr std::size_t kWords = 1 << 18;
    Plan impossible = add_plan(kWords);
    impossible.kernels[0].shader = "nonesuch";  // found only after the upload of the input has begun
    const Shared array = room(kWords);
    const Words words = counting(kWords);
    write(array, words);
    for (int call = 0; call < 30; ++call) {
        EXPECT_THROW(run(*device_, impossible, words), Error);
    }
    const std::vector<Action> copies{[&] { write(array, words); }, [&] { read(array); }};
    for (const Action& copy : copies) {
        for (std::uint64_t number = 1; number <= 6; ++number) {
            for (int call = 0; call < 30; ++call) {
                Faults::get().arm(VK_ERROR_OUT_OF_HOST_MEMORY, number);
                try {
                    copy();
                } catch (const MemoryError&) {
                }
            }
        }
        Faults::get().disarm();
        EXPECT_TRUE(read(array) == words);
    }
    expect_adds(*device_, kWords);
}

}  // namespace
}  // namespace vkrnn::test
