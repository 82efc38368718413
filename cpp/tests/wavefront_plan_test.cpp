// Tests plans of networks whose layers run as a wavefront.
#include <cstring>
#include <string>
#include <vector>

#include "plan/library_product.h"
#include "plan_specs.h"
#include "strategy_calls.h"
#include "vkrnn/network_plan.h"

namespace vkrnn {
namespace {

Profile large_gpu() {
    Profile profile = with_matrix_units();
    profile.name = "NVIDIA H200";
    profile.backend = Backend::cuda;
    profile.compute_units = 132;
    profile.memory_bytes = profile.max_allocation = std::uint64_t{140} << 30;
    profile.product_library = profile.storage_16bit = true;
    return profile;
}

NetworkSpec network_of(std::size_t layers, std::int64_t T, std::int64_t N, std::int64_t H, bool gradients = false,
                       std::initializer_list<Argument> given = {}) {
    Spec spec = make_spec(CellKind::lstm, {}, given);
    spec.T = T;
    spec.N = N;
    spec.I = spec.H = H;
    spec.precision = Precision::tf32;
    if (gradients) {
        spec.descriptor.set(Flag::training, true);
        spec = gradients_of(spec);
    }
    return {std::vector(layers, spec)};
}

NetworkPlan plan_of(const NetworkSpec& spec, const Profile& profile, std::optional<std::int64_t> wavefront = {}) {
    return make_network_plan(
        spec, profile, [&](const Spec& layer) { return std::make_shared<const Plan>(make_plan(layer, profile)); },
        wavefront);
}

std::vector<Wavefront> wavefronts_of(const NetworkPlan& made) {
    std::vector<Wavefront> found;
    for (const Step& step : made.plan->steps)
        if (const auto* wavefront = std::get_if<Wavefront>(&step)) found.push_back(*wavefront);
    return found;
}

// The first step of each of a lane's pieces, and the step after its last one.
std::vector<std::pair<std::int64_t, std::int64_t>> steps_of(const Wavefront::Lane& lane) {
    std::vector<std::pair<std::int64_t, std::int64_t>> found;
    for (const Sequence& piece : lane.pieces)
        for (const auto& step : piece)
            if (const auto* loop = std::get_if<Loop>(&step))
                found.emplace_back(loop->first, loop->first + loop->increment * loop->count);
    return found;
}

TEST(Wavefront, IsChosenWhereLayersCanShareTheDevice) {
    const Profile profile = large_gpu();
    for (const bool gradients : {false, true}) {
        EXPECT_EQ(wavefronts_of(plan_of(network_of(4, 256, 16, 512, gradients), profile)).size(), 1u);
        EXPECT_EQ(wavefronts_of(plan_of(network_of(4, 512, 1, 256, gradients), profile)).size(), 1u);
        // The weights of one layer fill the registers, and all multiprocessors read them from the cache.
        EXPECT_TRUE(wavefronts_of(plan_of(network_of(4, 100, 64, 1024, gradients), profile)).empty());
        EXPECT_TRUE(wavefronts_of(plan_of(network_of(1, 256, 16, 512, gradients), profile)).empty());
    }
    Profile on_cpu = profile;
    on_cpu.type = DeviceType::cpu;
    EXPECT_TRUE(wavefronts_of(plan_of(network_of(4, 512, 1, 256), on_cpu)).empty());
}

// Workgroups that wait for each other must run at the same time.
TEST(Wavefront, LanesFitOnTheDeviceTogether) {
    const Profile profile = large_gpu();
    for (const bool gradients : {false, true})
        for (const std::size_t layers : {2u, 3u, 4u, 8u})
            for (const Wavefront& wavefront :
                 wavefronts_of(plan_of(network_of(layers, 256, 16, 512, gradients), profile))) {
                std::uint64_t groups = 0;
                for (const Wavefront::Lane& lane : wavefront.lanes)
                    for (const auto& step : lane.pieces.front())
                        if (const auto* loop = std::get_if<Loop>(&step)) {
                            const auto& [x, y, z] = loop->body.front().groups;
                            groups += std::uint64_t{x} * y * z;
                        }
                EXPECT_LE(groups, profile.compute_units) << layers << " layers, gradients " << gradients;
            }
}

// What layers do before and after their loops runs in their lanes, too.
TEST(Wavefront, LayersBeginAndEndBesideEachOther) {
    for (const bool gradients : {false, true}) {
        const NetworkPlan made = plan_of(network_of(3, 70, 16, 512, gradients), large_gpu(), 32);
        for (const Step& step : made.plan->steps)
            EXPECT_TRUE(std::holds_alternative<Clear>(step) || std::holds_alternative<Wavefront>(step));
        const std::vector<Wavefront> wavefronts = wavefronts_of(made);
        ASSERT_EQ(wavefronts.size(), 1u);
        for (const Wavefront::Lane& lane : wavefronts[0].lanes) {
            EXPECT_GE(lane.before.size(), 3u) << "packs the weights";
            EXPECT_EQ(lane.after.empty(), !gradients) << "the gradients of the weights";
        }
    }
}

// Large products of the library run beside the steps that pack the weights, and beside the sums of the deltas.
TEST(Branches, AreMadeBesideLargeProducts) {
    const auto branches_of = [](const NetworkPlan& made) {
        std::vector<std::vector<std::string>> labels;
        for (const Step& step : made.plan->steps)
            if (const auto* const found = std::get_if<Branches>(&step))
                for (const Sequence& branch : found->branches) {
                    labels.emplace_back();
                    for (const auto& each : branch)
                        for_each_dispatch(each,
                                          [&](const Dispatch& dispatch) { labels.back().push_back(dispatch.label); });
                }
        return labels;
    };
    using Labels = std::vector<std::vector<std::string>>;
    const Labels forward = branches_of(plan_of(network_of(1, 100, 64, 1024), large_gpu()));
    ASSERT_EQ(forward.size(), 2u);
    EXPECT_EQ(forward[0], std::vector<std::string>{"project"});
    EXPECT_EQ(forward[1].back(), "step weights");
    const Labels back = branches_of(plan_of(network_of(1, 100, 64, 1024, true, {Argument::bias}), large_gpu()));
    ASSERT_EQ(back.size(), 4u);
    EXPECT_EQ(back[0], std::vector<std::string>{"recompute"});
    EXPECT_EQ(back[1].back(), "step back weights");
    EXPECT_EQ(back[2].front(), "gradient of bias");
    EXPECT_EQ(back[3].front(), "gradient of source");
    EXPECT_EQ(branches_of(plan_of(network_of(2, 100, 64, 1024), large_gpu(), 0)).size(), 4u) << "for each layer";
    EXPECT_TRUE(branches_of(plan_of(network_of(1, 16, 4, 128), large_gpu())).empty()) << "small";
    EXPECT_TRUE(branches_of(plan_of(network_of(3, 70, 64, 512), large_gpu(), 32)).empty()) << "lanes run beside others";
}

TEST(Wavefront, PiecesCoverTheTimeAxis) {
    const Profile profile = large_gpu();
    using Steps = std::vector<std::pair<std::int64_t, std::int64_t>>;
    const auto forward = wavefronts_of(plan_of(network_of(3, 70, 16, 512), profile, 32));
    ASSERT_EQ(forward.size(), 1u);
    ASSERT_EQ(forward[0].lanes.size(), 3u);
    for (const Wavefront::Lane& lane : forward[0].lanes)
        EXPECT_EQ(steps_of(lane), (Steps{{0, 32}, {32, 64}, {64, 96}}));  // the kernel ends at step T
    const auto back = wavefronts_of(plan_of(network_of(3, 70, 16, 512, true), profile, 32));
    ASSERT_EQ(back.size(), 1u);
    for (const Wavefront::Lane& lane : back[0].lanes)
        EXPECT_EQ(steps_of(lane), (Steps{{69, 37}, {37, 5}, {5, -27}}));  // and here at step 0
}

// Each lane multiplies all rows once, in the order of its steps, with the algorithm of the whole product.
TEST(Wavefront, PartsOfProductsCoverTheRows) {
    const Profile profile = large_gpu();
    for (const bool gradients : {false, true}) {
        const NetworkPlan made = plan_of(network_of(3, 70, 16, 512, gradients), profile, 32);
        const std::vector<Wavefront> wavefronts = wavefronts_of(made);
        ASSERT_EQ(wavefronts.size(), 1u);
        for (const Wavefront::Lane& lane : wavefronts.front().lanes) {
            std::vector<std::int64_t> rows, offsets;
            for (const Sequence& piece : lane.pieces)
                for (const auto& step : piece)
                    for_each_dispatch(step, [&](const Dispatch& dispatch) {
                        if (!is_library_product(made.plan->kernels[dispatch.kernel])) return;
                        LibraryProduct product{};
                        std::memcpy(&product, dispatch.push.bytes.data(), sizeof(product));
                        rows.push_back(product.m / 16);
                        offsets.push_back(static_cast<std::int64_t>(referenced_offset(product.c)) /
                                          (16 * product.c_ld * std::int64_t{sizeof(float)}));
                        EXPECT_EQ(product.whole_m, 70 * 16);
                    });
            EXPECT_EQ(rows, (std::vector<std::int64_t>{32, 32, 6}));
            EXPECT_EQ(offsets,
                      gradients ? (std::vector<std::int64_t>{38, 6, 0}) : (std::vector<std::int64_t>{0, 32, 64}));
        }
    }
}

TEST(Wavefront, HasTheInputsAndResultsOfOneLayerAfterTheOther) {
    const Profile profile = large_gpu();
    for (const bool gradients : {false, true}) {
        NetworkSpec spec = network_of(4, 64, 16, 256, gradients);
        spec.between = {true, false, true};
        const NetworkPlan one = plan_of(spec, profile, 0), other = plan_of(spec, profile, 16);
        EXPECT_TRUE(wavefronts_of(one).empty());
        ASSERT_EQ(wavefronts_of(other).size(), 1u);
        EXPECT_EQ(one.inputs, other.inputs);
        EXPECT_EQ(one.results, other.results);
        for (std::size_t i = 0; i < one.inputs.size(); ++i)
            EXPECT_EQ(one.plan->buffers[one.plan->inputs[i].second].bytes,
                      other.plan->buffers[other.plan->inputs[i].second].bytes);
    }
}

TEST(Wavefront, BringsThePlanForADeviceWhoseWaitsFail) {
    const Profile profile = large_gpu();
    const NetworkSpec spec = network_of(4, 256, 16, 512);
    const Plan chosen = *plan_of(spec, profile).plan, fixed = *plan_of(spec, profile, 32).plan;
    ASSERT_NE(chosen.in_turn.plan, nullptr);
    EXPECT_EQ(*chosen.in_turn.plan, *plan_of(spec, profile, 0).plan);
    EXPECT_EQ(fixed.in_turn.plan, nullptr);
}

// Lanes need memory at the same time. If that is much of the device's, layers run one after the other.
TEST(Wavefront, IsNotChosenIfMemoryIsScarce) {
    Profile profile = large_gpu();
    profile.memory_bytes = std::uint64_t{1} << 30;
    EXPECT_TRUE(wavefronts_of(plan_of(network_of(4, 256, 16, 512), profile)).empty());
    EXPECT_FALSE(wavefronts_of(plan_of(network_of(4, 256, 16, 512), profile, 32)).empty()) << "the caller fixed it";
}

TEST(Wavefront, GroupsOnlyLayersThatRunForward) {
    NetworkSpec spec = network_of(5, 64, 16, 256);
    spec.layers[2].descriptor.set(Flag::reverse, true);
    const auto found = wavefronts_of(plan_of(spec, large_gpu(), 16));
    ASSERT_EQ(found.size(), 2u);
    for (const Wavefront& wavefront : found) EXPECT_EQ(wavefront.lanes.size(), 2u);
}

TEST(Wavefront, IsPrinted) {
    const std::string text = describe(*plan_of(network_of(3, 64, 16, 256), large_gpu(), 16).plan);
    EXPECT_NE(text.find("lane 2 of 3, the first of 4 pieces"), std::string::npos) << text;
}

}  // namespace
}  // namespace vkrnn
