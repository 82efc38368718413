// Makes every allocation in uses of the CPU device fail once. Each failure is an error of a documented class, leaks
// nothing, and the next use is right.
#include <functional>
#include <utility>

#include <gtest/gtest.h>

#include "allocation_faults.h"
#include "cpu/run/cpu_device.h"
#include "cpu_plans.h"
#include "vkrnn/error.h"

namespace vkrnn::cpu {
namespace {

using test::Allocations;
using Values = std::vector<std::vector<float>>;

class Failing : public testing::TestWithParam<Allocations::Failing> {
protected:
    // A call with its arguments and results in host memory.
    struct Call {
        std::shared_ptr<const Plan> plan;
        Values inputs, results;

        Call(CpuDevice& device, const Spec& spec, const Arrays& arrays) : plan(device.plan(spec)) {
            for (const auto& [argument, buffer] : plan->inputs)
                inputs.emplace_back(arrays.at(argument).begin(), arrays.at(argument).end());
            for (const std::size_t buffer : plan->results)
                results.emplace_back(plan->buffers[buffer].bytes / sizeof(float));
        }
        void run_from_the_host(CpuDevice& device) {
            std::vector<InputLocation> from;
            std::vector<ResultLocation> to;
            for (const auto& input : inputs) from.push_back({.host = input.data()});
            for (auto& result : results) to.push_back({.host = result.data()});
            device.run(plan, from, to, true, "call", {});
        }
        void run_on_arrays(CpuDevice& device) {
            std::vector<InputLocation> from;
            std::vector<ResultLocation> to;
            for (const auto& input : inputs) {
                from.push_back({.storage = device.allocate(input.size() * sizeof(float), true)});
                device.upload({.storage = from.back().storage}, input.data(), input.size() * sizeof(float), {});
            }
            for (const auto& result : results)
                to.push_back({.storage = device.allocate(result.size() * sizeof(float), false)});
            for (int call = 0; call < 2; ++call)  // the second one uses cached prepacked weights
                device.run(plan, from, to, false, "call", {});
            for (std::size_t i = 0; i < results.size(); ++i)
                device.download(results[i].data(), {.storage = to[i].storage}, results[i].size() * sizeof(float), {});
        }
    };

    // Makes each allocation of the use fail in turn, and checks the next use.
    void try_all(const std::function<void()>& use, const std::function<void()>& check) {
        for (int i = 0; i < 2; ++i) use();  // makes everything that is made only once
        const std::int64_t existing = Allocations::existing();
        const std::uint64_t held = device_->statistics().bytes_allocated;
        std::int64_t n = 1;
        for (bool failed = true; failed; ++n) {
            Allocations::arm(n, GetParam(), Allocations::Threads::all);
            try {
                use();
            } catch (const MemoryError& error) {
                Allocations::disarm();
                EXPECT_TRUE(std::string_view(error.what()).ends_with(" on " + device_->profile().name)) << error.what();
            } catch (const std::bad_alloc&) {  // no memory for a message
            }
            failed = Allocations::disarm();
            use();
            check();
            ASSERT_EQ(Allocations::existing(), existing) << "allocation " << n;
            ASSERT_LE(device_->statistics().bytes_allocated, held) << "allocation " << n;
        }
        EXPECT_GT(n, 2);
    }

    static constexpr std::int64_t kT = 2, kN = 3, kI = 7, kH = 21;
    const Spec spec_ = learning_spec(CellKind::lstm, {kT, kN, kI, kH});
    const std::shared_ptr<CpuDevice> device_ = std::make_shared<CpuDevice>(StrategyChoice{});
};
INSTANTIATE_TEST_SUITE_P(Allocations, Failing,
                         testing::Values(Allocations::Failing::one, Allocations::Failing::all_from_then_on),
                         [](const auto& instance) {
                             return instance.param == Allocations::Failing::one ? "one" : "all_from_then_on";
                         });

TEST_P(Failing, ACallOnArrays) {
    Call call(*device_, spec_, make_arrays(spec_));
    call.run_from_the_host(*device_);
    const Values expected = call.results;
    try_all([&] { call.run_on_arrays(*device_); }, [&] { EXPECT_EQ(call.results, expected); });
}

TEST_P(Failing, ATrainingCall) {
    const Spec spec = gradients_of(spec_);
    Call forward(*device_, spec_, make_arrays(spec_)), backward(*device_, spec, make_arrays(spec));
    const auto train = [&] {
        forward.run_from_the_host(*device_);
        backward.run_from_the_host(*device_);
    };
    train();
    const std::pair expected{forward.results, backward.results};
    try_all(train, [&] { EXPECT_EQ(std::pair(forward.results, backward.results), expected); });
}

TEST_P(Failing, OpeningACallAndClosing) {
    const Arrays arrays = make_arrays(spec_);
    Values results;
    try_all(
        [&] {
            CpuDevice device{StrategyChoice{}};
            Call call(device, spec_, arrays);
            call.run_from_the_host(device);
            device.close();
            EXPECT_TRUE(results.empty() || results == call.results);
            results = std::move(call.results);
        },
        [] {});
}

TEST_P(Failing, ATeamThatGrows) {
    static unsigned threads = 3;
    std::atomic<unsigned> worked = 0;
    const std::function<void(Member&)> work = [&](Member&) { ++worked; };
    for (std::int64_t n = 1; n < 12; ++n) {
        const Threads allowed(++threads);
        Allocations::arm(n, GetParam(), Allocations::Threads::all);
        try {
            run_on_team(threads, {}, work);
        } catch (const std::bad_alloc&) {
        }
        Allocations::disarm();
        worked = 0;
        run_on_team(threads, {}, work);
        EXPECT_EQ(worked, threads) << "allocation " << n;
        EXPECT_EQ(idle_threads(), threads - 1);
    }
}

TEST(Destructors, AllocateNothing) {
    CpuDevice device{StrategyChoice{}};
    std::vector<std::shared_ptr<Storage>> arrays;
    for (std::uint64_t i = 0; i < 300; ++i) arrays.push_back(device.allocate(i * 1000, false));
    auto view = std::make_unique<HostView>(arrays.front());
    Allocations::arm(1, Allocations::Failing::all_from_then_on, Allocations::Threads::all);
    arrays.clear();
    view.reset();
    device.close();
    EXPECT_FALSE(Allocations::disarm());
    EXPECT_EQ(device.statistics().bytes_allocated, 0u);
}

}  // namespace
}  // namespace vkrnn::cpu
