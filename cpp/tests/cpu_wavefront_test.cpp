// Tests wavefronts of layers on teams of any size.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cpu/run/cpu_device.h"
#include "cpu/work/pieces.h"
#include "cpu_team.h"
#include "vkrnn/network.h"

namespace vkrnn::cpu {
namespace {

using enum Argument;

// Runs all pieces on a team. Counts those that began before a piece that they need was done, and all of them.
struct Pass {
    std::size_t lanes, pieces;
    std::vector<std::atomic<std::size_t>> done = std::vector<std::atomic<std::size_t>>(lanes);
    std::atomic<std::size_t> early = 0, count = 0;

    void run(Member& member, Pieces& from, unsigned parts, const std::function<void()>& work) {
        std::size_t lane = 0;
        while (const auto taken = from.take(member, lane, parts, std::chrono::steady_clock::duration::zero())) {
            lane = taken->lane;
            if (done[lane] != taken->number || (lane > 0 && done[lane - 1] <= taken->number)) ++early;
            work();
            ++count;
            ++done[lane];
            from.finish(*taken);
        }
    }
};

TEST(Pieces, AreEachTakenOnceAfterThoseThatTheyNeed) {
    for (const unsigned threads : {1U, 2U, 3U, 8U})
        for (const std::size_t lanes : {2U, 3U, 5U})
            for (const std::size_t pieces : {1U, 7U}) {
                const Threads allowed(threads);
                Pieces all(lanes, pieces);
                Pass pass{lanes, pieces};
                run_on_team(threads, {}, [&](Member& member) { pass.run(member, all, member.size(), [] {}); });
                EXPECT_EQ(pass.early, 0U);
                EXPECT_EQ(pass.count, lanes * pieces);
            }
}

TEST(Pieces, AThreadThatFailsStopsThoseThatWaitForItsPiece) {
    const Threads allowed(4);
    Pieces all(3, 5);
    Pass pass{3, 5};
    const auto fail_late = [&] {
        if (pass.count == 4) throw std::runtime_error("failed");
    };
    EXPECT_THROW(run_on_team(4, {}, [&](Member& member) { pass.run(member, all, member.size(), fail_late); }),
                 std::runtime_error);
    EXPECT_LT(pass.count, 15U);
}

TEST(Pieces, PartsOfATeamHaveBarriersOfTheirOwn) {
    const Threads allowed(7);
    std::vector<std::atomic<unsigned>> arrived(3);
    std::atomic<unsigned> wrong = 0;
    run_on_team(7, {}, [&](Member& member) {
        if (member.size() != 7) return;  // the machine has a quota
        const unsigned first[] = {0, 3, 5, 7}, part = member.rank() < 3 ? 0 : member.rank() < 5 ? 1 : 2;
        Member of_part = member.in_part(first[part], first[part + 1] - first[part]);
        const unsigned size = of_part.size();
        for (unsigned round = 1; round <= 50 * (part + 1); ++round)
            for (const unsigned which : {0U, size / 2}) {
                ++arrived[part];
                if (of_part.barrier(which, of_part.rank(), size, false) != size) ++wrong;
                if (arrived[part] % size != 0) ++wrong;
                if (of_part.barrier(which, of_part.rank(), size, false) != size) ++wrong;
            }
    });
    EXPECT_EQ(wrong, 0U);
}

class Wavefronts : public testing::TestWithParam<CellKind> {
protected:
    static constexpr std::int64_t T = 12, N = 2, H = 256, L = 3;

    static std::vector<float> numbers(std::int64_t count, double seed) {
        std::vector<float> drawn(static_cast<std::size_t>(count));
        for (std::size_t i = 0; i < drawn.size(); ++i)
            drawn[i] = static_cast<float>(0.1 * std::sin(seed + 1.7 * static_cast<double>(i)));
        return drawn;
    }
    static TensorInfo info(TensorShape shape) { return {"float32", std::move(shape), {}}; }

    using Tensors = std::map<NetworkTensor, std::vector<float>>;

    static Tensors run(const Network& network, const NetworkSpec& spec, const Tensors& given) {
        const auto made = network.plan(spec, false);
        Tensors results;
        for (std::size_t i = 0; i < made->results.size(); ++i)
            results[made->results[i]].resize(made->plan->buffers[made->plan->results[i]].bytes / sizeof(float));
        network.run(
            *made, [&](const NetworkTensor& tensor) -> InputLocation { return {given.at(tensor).data()}; },
            [&](const NetworkTensor& tensor) -> ResultLocation { return {results.at(tensor).data()}; }, true, {});
        return results;
    }

    // Returns all results of a forward call and of its gradient call.
    [[nodiscard]] Tensors results(const std::shared_ptr<CpuDevice>& device) const {
        const Network network(device, layers_);
        NetworkArguments arguments{std::vector<Arguments>(L), {}, 0};
        arguments.layers[0] = {{source, info({T, N, H})}};
        Tensors tensors{{{0, source}, numbers(T * N * H, 4)}, {{L - 1, source_gradient}, numbers(T * N * H, 5)}};
        const NetworkSpec spec = network.check(arguments);
        tensors.merge(run(network, spec, tensors));
        Tensors found =
            run(network, check_network_gradients(spec, {info({T, N, H}), std::vector<Arguments>(L)}), tensors);
        found.merge(tensors);
        return found;
    }

    std::vector<std::vector<float>> weights_;
    std::vector<NetworkLayer> layers_;

    void SetUp() override {
        const std::int64_t rows = cell(GetParam()).gate_count() * H;
        for (std::int64_t l = 0; l < 2 * L; ++l) weights_.push_back(numbers(rows * H, static_cast<double>(l)));
        for (std::size_t l = 0; l < L; ++l)
            layers_.push_back({default_descriptor(GetParam()),
                               {{input_weight, {weights_[2 * l].data(), {rows, H}}},
                                {recurrent_weight, {weights_[2 * l + 1].data(), {rows, H}}}}});
    }
};

TEST_P(Wavefronts, HaveTheBitsOfOneLayerAfterTheOtherOnAnyNumberOfThreads) {
    const Tensors expected = results(std::make_shared<CpuDevice>(StrategyChoice{{}, {}, {}, 0}));
    for (const unsigned threads : {1U, 2U, 3U, 5U, 8U})
        for (const std::int64_t piece : {1, 5}) {
            const Threads allowed(threads);
            EXPECT_EQ(results(std::make_shared<CpuDevice>(StrategyChoice{{}, {}, {}, piece})), expected) << threads;
        }
}

INSTANTIATE_TEST_SUITE_P(Cells, Wavefronts, testing::Values(CellKind::lstm, CellKind::gru),
                         [](const auto& each) { return std::string(cell(each.param).name); });

TEST_P(Wavefronts, AreLeftOutOnOneThread) {
    const Threads allowed(1);
    const auto device = std::make_shared<CpuDevice>(StrategyChoice{});
    const Network network(device, layers_);
    NetworkArguments arguments{std::vector<Arguments>(L), {}, 0};
    arguments.layers[0] = {{source, info({40, N, H})}};
    const NetworkSpec spec = network.check(arguments);
    const Plan& plan = *network.plan(spec, false)->plan;
    ASSERT_NE(plan.in_turn.plan, nullptr);
    EXPECT_EQ(plan.in_turn.plan->results, plan.results);
    const Tensors given{{{0, source}, numbers(40 * N * H, 4)}};
    run(network, spec, given);
    EXPECT_EQ(device->statistics().dispatches, static_cast<std::uint64_t>(plan.in_turn.plan->dispatches()));
}

}  // namespace
}  // namespace vkrnn::cpu
