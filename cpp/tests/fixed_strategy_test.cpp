// Tests the strategies and tuning parameters that a caller fixes or a tuning table has, and which ones are refused.
#include <gtest/gtest.h>

#include <set>

#include "strategy_calls.h"

namespace vkrnn {
namespace {

TEST(Strategy, IsWhatTheCallerFixed) {
    const Profile profile = profile_of(DeviceType::cpu, 8, 1024);
    const StrategyChoice fixed{"steps", "tiled", {{"lanes", 4}, {"rows", 2}, {"workgroup", 64}}};
    check_choice(fixed, profile);
    EXPECT_EQ(chosen(profile, fixed), fixed);
    const StrategyChoice one_size{"", "", {{"rows", 2}}};
    check_choice(one_size, profile);
    EXPECT_EQ(chosen(profile, one_size),
              (StrategyChoice{"steps", "register", {{"lanes", 1}, {"rows", 2}, {"workgroup", 8}}}));
}

TEST(Strategy, IsOneThatTheDeviceHas) {
    const Profile small = profile_of(DeviceType::cpu, 8, 128), large = profile_of(DeviceType::cpu, 8, 1024);
    EXPECT_EQ(refusal<ValueError>({"", "vectors", {}}, small), "[Device] gemm: expected 'register', got 'vectors'");
    EXPECT_EQ(refusal<ValueError>({"", "vectors", {}}, large),
              "[Device] gemm: expected 'register' or 'tiled', got 'vectors'");
    EXPECT_EQ(refusal<ValueError>({"native", "", {}}, large),
              "[Device] schedule: expected 'steps' or 'tiles' or 'slices' or 'split', got 'native'");
    EXPECT_EQ(refusal<ValueError>({"steps", "", {}}, native()), "[Device] schedule: expected 'native', got 'steps'");
}

TEST(Strategy, IsTheTunedOne) {
    const Profile profile = profile_of(DeviceType::cpu, 8, 1024);
    const StrategyChoice usual = chosen(profile);
    const StrategyChoice tuned{"steps", "tiled", {{"lanes", 4}, {"rows", 2}, {"workgroup", 64}}};
    ASSERT_NE(usual, tuned);
    Spec spec = small_call();
    const auto with = [&](const StrategyChoice& choice, const StrategyChoice& fixed = {}) {
        return make_plan(spec, profile, fixed, {{tuned_call(small_call()), choice}}).choice;
    };
    EXPECT_EQ(with(tuned), tuned);
    EXPECT_EQ(with(tuned, {"steps", "", {}}), usual) << "fixed strategies take precedence";
    EXPECT_EQ(with({"wishes", "", {}}), usual);
    EXPECT_EQ(with({"", "", {{"lanes", 3}}}), usual);
    EXPECT_EQ(with({"", "", {{"teeth", 32}}}), usual);
    spec.T = 3;
    EXPECT_EQ(with(tuned), tuned) << "T counts up to the next power of two";
    spec.T = 5;
    EXPECT_EQ(with(tuned), usual);
}

TEST(Strategy, TunedCallsAreKeyedByWhatDecidesTheirTime) {
    Spec spec = small_call();
    const TunedCall call = tuned_call(spec);
    const auto other = [&](const auto& change) {
        Spec changed = spec;
        change(changed);
        return tuned_call(changed) != call;
    };
    EXPECT_TRUE(other([](Spec& s) { s.gradients = true; }));
    EXPECT_TRUE(other([](Spec& s) { s.descriptor.set(Flag::training, true); }));
    EXPECT_TRUE(other([](Spec& s) { s.descriptor.set(Flag::bidirectional, true); }));
    EXPECT_TRUE(other([](Spec& s) { s.dtype = Dtype::float16; }));
    EXPECT_TRUE(other([](Spec& s) { s.precision = Precision::tf32; }));
    EXPECT_TRUE(other([](Spec& s) { s.N = 5; }));
    EXPECT_TRUE(other([](Spec& s) { s.I = 5; }));
    EXPECT_TRUE(other([](Spec& s) { s.H = 5; }));
    EXPECT_FALSE(other([](Spec& s) { s.T = 3; }));
    EXPECT_FALSE(other([](Spec& s) { s.descriptor.set(Flag::reverse, true); }));
    spec.descriptor = default_descriptor(CellKind::gru);
    Spec after = spec;
    after.descriptor.set(Flag::reset_after, true);
    EXPECT_NE(tuned_call(spec), tuned_call(after)) << "its steps have one phase";
}

// Parameters that are worth measuring can also be fixed.
TEST(Strategy, HasVariantsThatTheDeviceCanRun) {
    for (const Profile& profile : {native(), with_matrix_units(), profile_of(DeviceType::cpu, 8, 128)}) {
        const StrategyVariants variants = list_variants(profile);
        for (const auto& [name, all] : variants.schedule) {
            EXPECT_EQ(all.at(0), Parameters{}) << name;
            for (const Parameters& parameters : all) check_choice({name, "", parameters}, profile);
        }
        for (const auto& [name, all] : variants.gemm)
            for (const Parameters& parameters : all) check_choice({"", name, parameters}, profile);
    }
}

TEST(Strategy, HasParametersThatTheDeviceCanRun) {
    const Profile profile = profile_of(DeviceType::cpu, 8, 1024);
    EXPECT_EQ(refusal<ValueError>({"", "", {{"lanes", 3}}}, profile),
              "[Device] lanes: expected a power of two up to the subgroup's 8, got 3");
    EXPECT_EQ(refusal<ValueError>({"", "", {{"rows", 9}}}, profile), "[Device] rows: expected 1 to 8, got 9");
    EXPECT_EQ(refusal<ValueError>({"", "", {{"workgroup", 12}}}, profile),
              "[Device] workgroup: expected a multiple of the subgroup's 8 up to 1024, got 12");
    EXPECT_EQ(refusal<ValueError>({"", "", {{"register_vec4s", 257}}}, profile),
              "[Device] register_vec4s: expected 0 to 256, got 257");
    EXPECT_EQ(refusal<ValueError>({"", "matrices", {{"product_column_groups", 16}}}, with_matrix_units()),
              "[Device] product_row_groups: expected 1 or 2 with these product_column_groups, got 4");
    EXPECT_EQ(refusal<TypeError>({"", "", {{"tile", 8}}}, profile),
              "[Device] tile: unknown option; the options are float32, schedule, gemm, wavefront, column_lanes, "
              "depth_block, lanes, "
              "register_vec4s, row_lanes, rows, "
              "slice_heads, slice_lanes, slice_rows, slice_steps, slice_units, teams, thread_columns, thread_rows, "
              "workgroup");
    EXPECT_EQ(refusal<TypeError>({"", "", {{"lanes", 8}}}, native()),
              "[Device] lanes: unknown option; the options are float32, schedule, gemm, wavefront");
}

// A caller fixes a parameter by its name only, so loop and product strategies must not share names.
TEST(Strategy, SharesNoParameterNamesBetweenLoopsAndProducts) {
    for (const Profile& profile : {native(), with_matrix_units()}) {
        std::set<std::string> of_loops;
        for (const LoopStrategy* loop : loop_strategies(profile.backend))
            for (const auto& [name, size] : loop->parameters(profile, {})) of_loops.insert(name);
        for (const ProductStrategy* products : product_strategies(profile.backend))
            for (const auto& [name, size] : products->parameters(profile, {}))
                EXPECT_FALSE(of_loops.contains(name)) << name;
    }
}

}  // namespace
}  // namespace vkrnn
