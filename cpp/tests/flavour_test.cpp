// Which flavour a device gets, from what it says of itself, and what llvmpipe's are to do.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "vkrnn/error.h"
#include "vkrnn/plan.h"
#include "vkrnn/profile.h"

namespace vkrnn {
namespace {

Profile llvmpipe(const std::string& version, std::uint32_t subgroup_size) {
    Profile profile;
    profile.driver = "llvmpipe";
    profile.driver_version = version;
    profile.type = DeviceType::cpu;
    profile.subgroup_size = subgroup_size;
    return profile;
}

TEST(Flavour, FollowsLlvmpipesRelease) {
    const auto chosen = [](const std::string& version, std::uint32_t subgroup_size) {
        return choose_flavour(llvmpipe(version, subgroup_size)).gemm;
    };
    EXPECT_EQ(chosen("Mesa 22.3.6 (LLVM 15.0.6)", 8), "broadcast");
    EXPECT_EQ(chosen("Mesa 22.3.6 (LLVM 15.0.6)", 16), "broadcast");
    EXPECT_EQ(chosen("Mesa 22.3.6 (LLVM 15.0.6)", 4), "register");
    EXPECT_EQ(chosen("Mesa 25.0.7-2~bpo12+1 (LLVM 15.0.6)", 8), "broadcast");
    EXPECT_EQ(chosen("Mesa 25.0.7-2~bpo12+1 (LLVM 15.0.6)", 16), "register");  // computes wrongly
    EXPECT_EQ(chosen("Mesa 25.1.0", 8), "register");                           // not known
    EXPECT_EQ(chosen("Mesa 26.1.9", 8), "register");
    EXPECT_EQ(chosen("Mesa 26.2.6-1 (LLVM 22.1.8)", 8), "loops");
    EXPECT_EQ(chosen("Mesa 27.0.0-devel (git-0123456789)", 8), "loops");
    EXPECT_EQ(chosen("a release without a number", 8), "register");
    Profile other = llvmpipe("Mesa 26.2.6", 8);
    other.driver = "swiftshader";
    EXPECT_EQ(choose_flavour(other).gemm, "register");
}

TEST(Flavour, IsOneThatTheDeviceHas) {
    const auto message = [](const Profile& profile) -> std::string {
        Flavour flavour = choose_flavour(profile);
        flavour.gemm = "vectors";
        try {
            check_flavour(flavour, profile);
        } catch (const ValueError& error) {
            return error.what();
        }
        return "";
    };
    EXPECT_EQ(message(llvmpipe("Mesa 22.3.6", 8)),
              "[Device] gemm: expected 'register', 'broadcast' or 'loops', got 'vectors'");
    Profile wide = llvmpipe("Mesa 26.2.6", 8);
    wide.max_workgroup_invocations = 1024;
    EXPECT_EQ(message(wide), "[Device] gemm: expected 'register', 'tiled' or 'loops', got 'vectors'");
    Profile other = llvmpipe("Mesa 22.3.6", 8);
    other.driver = "swiftshader";
    EXPECT_EQ(message(other), "[Device] gemm: expected 'register', got 'vectors'");
}

Plan broadcast_plan(CellKind cell, bool gradients, std::int64_t T, std::int64_t N, std::int64_t H) {
    Profile profile = llvmpipe("Mesa 22.3.6", 16);
    profile.max_workgroup_invocations = 1024;
    profile.max_group_count = 65535;
    Spec spec;
    spec.descriptor = default_descriptor(cell);
    if (cell == CellKind::gru) spec.descriptor.set(Flag::reset_after, true);
    spec.gradients = gradients;
    spec.T = T;
    spec.N = N;
    spec.I = spec.H = H;
    spec.present = 1u << static_cast<unsigned>(Argument::input_weight);
    for (const Parameter& parameter : gradients ? spec.cell().gradients : spec.cell().forward)
        if (!parameter.optional) spec.present |= 1u << static_cast<unsigned>(parameter.argument);
    return make_plan(spec, profile, choose_flavour(profile));
}

// Some releases take as long over a push of descriptors as over a small dispatch.
TEST(Flavour, BroadcastBindsTheSameWindowsInEveryStep) {
    const Plan plan = broadcast_plan(CellKind::lstm, false, 8, 16, 512);
    std::map<std::size_t, std::set<std::size_t>> bound;  // buffers by binding
    std::set<std::string> shaders;
    for (const Step& step : plan.steps)
        if (const auto* loop = std::get_if<Loop>(&step))
            for (const Dispatch& dispatch : loop->body) {
                shaders.insert(plan.kernels[dispatch.kernel].shader);
                for (std::size_t i = 0; i < dispatch.windows.size(); ++i)
                    if (dispatch.windows[i] != kNoBuffer) bound[i].insert(dispatch.windows[i]);
            }
    EXPECT_EQ(shaders, (std::set<std::string>{"gemm_broadcast", "lstm_broadcast_forward"}));
    EXPECT_GE(bound.size(), 2u);
    for (const auto& [binding, buffers] : bound) EXPECT_EQ(buffers.size(), 1u) << "binding " << binding;
}

// Of the weights' gradients: sums over T N rows.
TEST(Flavour, BroadcastPacksDeltasOnlyIfTheyAreManyOrNeedPadding) {
    const auto packs = [](std::int64_t T, std::int64_t N, std::int64_t H) {
        const Plan plan = broadcast_plan(CellKind::single_gate_rnn, true, T, N, H);
        return std::any_of(plan.buffers.begin(), plan.buffers.end(), [](const PlanBuffer& buffer) {
            return buffer.name.find("packed operand") != std::string::npos;
        });
    };
    EXPECT_FALSE(packs(100, 16, 128));
    EXPECT_FALSE(packs(50, 64, 512));
    EXPECT_TRUE(packs(100, 64, 512));  // more than a cache holds
    EXPECT_TRUE(packs(31, 17, 128));   // a number of rows that blocks of eight do not divide
}

// So that calls of any length find what another packed.
TEST(Flavour, BroadcastPacksWeightsAlikeForAnyLength) {
    using Packings = std::map<std::pair<Argument, std::string>, std::vector<std::int64_t>>;
    const auto packings = [](CellKind cell, bool gradients, std::int64_t T) {
        const Plan plan = broadcast_plan(cell, gradients, T, 8, 256);
        std::map<std::size_t, int> fills;
        for (const Step& step : plan.steps)
            if (const auto* dispatch = std::get_if<Dispatch>(&step); dispatch && dispatch->fills != kNoBuffer) {
                ++fills[dispatch->fills];
                Place to = 0;  // the second, of the kernels that copy
                std::memcpy(&to, dispatch->push.bytes.data() + sizeof(to), sizeof(to));
                EXPECT_EQ(place_buffer(to), dispatch->fills);
            }
        Packings found;
        for (std::size_t i = 0; i < plan.buffers.size(); ++i) {
            const PlanBuffer& buffer = plan.buffers[i];
            EXPECT_EQ(fills[i] > 0, buffer.role == Role::packed) << buffer.name;
            for (const auto& [argument, input] : plan.inputs)
                if (buffer.role == Role::packed && buffer.packing.input == input)
                    found[{argument, buffer.name}] = buffer.packing.layout;
        }
        return found;
    };
    for (const CellKind cell : {CellKind::single_gate_rnn, CellKind::lstm, CellKind::gru})
        for (const bool gradients : {false, true}) {
            const Packings found = packings(cell, gradients, 8);
            EXPECT_EQ(found, packings(cell, gradients, 100));
            std::set<Argument> arguments;
            for (const auto& [key, layout] : found) {
                arguments.insert(key.first);
                EXPECT_FALSE(layout.empty());
            }
            EXPECT_EQ(arguments, (std::set{Argument::recurrent_weight, Argument::input_weight}));
        }
}

}  // namespace
}  // namespace vkrnn
