// Tests plans without a device: dispatches, views, lengths and comparison.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "plan/cpu_work.h"
#include "plan_specs.h"
#include "portable/portable_abi.h"
#include "vkrnn/error.h"
#include "vkrnn/plan.h"

namespace vkrnn {
namespace {

// Recording replaces the buffer references at the beginning of a kernel's parameters, and nothing else.
TEST(Block, CountsItsReferences) {
    EXPECT_EQ(make_block(abi::GemmPush{}).references, 3U);  // then strides, of 64 bits, too
    EXPECT_EQ(make_block(abi::StepPush{}).references, 1U);
    EXPECT_EQ(make_block(abi::StepParams{}).references, 2 * abi::kViews + 3);
    EXPECT_EQ(make_block(cpu::LoopWork{}).references, 7 + 2 * abi::kViews + 3);  // those of a struct within, too
}

TEST(RowOrder, FollowsTheSpecification) {
    const Spec forward = make_spec(CellKind::lstm);
    EXPECT_EQ(row_order(forward, Order::source, 0).first, 0);
    EXPECT_EQ(row_order(forward, Order::output, 0).increment, 1);

    const Spec reverse = make_spec(CellKind::lstm, {Flag::reverse});
    EXPECT_EQ(row_order(reverse, Order::source, 0).first, 4);
    EXPECT_EQ(row_order(reverse, Order::source, 0).increment, -1);
    EXPECT_EQ(row_order(reverse, Order::output, 0).first, 0);
    EXPECT_EQ(row_order(reverse, Order::output, 0).increment, 1);

    const Spec both = make_spec(CellKind::lstm, {Flag::bidirectional});
    EXPECT_EQ(row_order(both, Order::output, 0).first, 0);
    EXPECT_EQ(row_order(both, Order::source, 1).first, 4);
    EXPECT_EQ(row_order(both, Order::output, 1).first, 4);
    EXPECT_EQ(row_order(both, Order::output, 1).increment, -1);
}

TEST(ForwardPlan, ProjectsOnceAndLoopsOnce) {
    const Profile profile = gpu();
    const Plan plan = plan_by_steps(make_spec(CellKind::lstm, {Flag::bidirectional}), profile);
    ASSERT_EQ(outside_loops(plan).size(), 1u);
    EXPECT_EQ(outside_loops(plan)[0].label, "project");
    ASSERT_EQ(loops(plan).size(), 1u);
    const Loop loop = loops(plan)[0];
    EXPECT_EQ(loop.count, 5);
    ASSERT_EQ(loop.body.size(), 1u);
    EXPECT_EQ(loop.body[0].groups[2], 2u) << "both directions in one dispatch";
    EXPECT_EQ(plan.dispatches(), 6);
    // Projection [15, 7] x [7, 32] and five steps of [3, 4] x [4, 16] in two directions.
    EXPECT_DOUBLE_EQ(plan.flops, 2.0 * 15 * 32 * 7 + 5 * 2.0 * 3 * 2 * 16 * 4);
}

TEST(ForwardPlan, ReadsTheSourceItselfWithoutAnInputWeight) {
    const Profile profile = gpu();
    Spec spec = make_spec(CellKind::single_gate_rnn);
    spec.present &= ~(1u << static_cast<unsigned>(Argument::input_weight));
    spec.I = 4;
    const Plan plan = plan_by_steps(spec, profile);
    EXPECT_TRUE(outside_loops(plan).empty());
    EXPECT_EQ(referenced_buffer(parameters_of(plan).at[2 * abi::kProjected]), buffer_named(plan, "source"));
}

TEST(ForwardPlan, ReverseIsANegativeStride) {
    const Profile profile = gpu();
    const Plan plan = plan_by_steps(make_spec(CellKind::lstm, {Flag::reverse}), profile);
    const abi::StepParams params = parameters_of(plan);
    EXPECT_EQ(params.strides[abi::kProjected].step[0], -3 * 16);
    EXPECT_EQ(referenced_offset(params.at[2 * abi::kProjected]), 4u * 3 * 16 * 4);
    EXPECT_EQ(params.strides[abi::kHidden].step[0], 3 * 4);
    EXPECT_EQ(referenced_offset(params.at[2 * abi::kHidden]), 0u);
}

TEST(ForwardPlan, AbsentTensorsReadTheZeros) {
    const Profile profile = gpu();
    const abi::StepParams params = parameters_of(plan_by_steps(make_spec(CellKind::lstm), profile));
    for (const abi::uint view : {abi::kBias, abi::kVectors, abi::kInitHidden, abi::kInitCell}) {
        EXPECT_EQ(params.at[2 * view], reference_to(0, 0));
        EXPECT_EQ(params.strides[view].row, 0u);
        EXPECT_EQ(params.strides[view].slot, 0u);
    }
}

TEST(ForwardPlan, BroadcastMaskHasStrideZeroInConstantAxes) {
    const Profile profile = gpu();
    Spec spec = make_spec(CellKind::lstm, {Flag::bidirectional}, {Argument::mask});
    spec.mask_varies = {true, false, true};
    const abi::Strides strides = parameters_of(plan_by_steps(spec, profile)).strides[abi::kMask];
    EXPECT_EQ(strides.step[0], 8);
    EXPECT_EQ(strides.step[1], -8);
    EXPECT_EQ(strides.row, 0u);
    EXPECT_EQ(strides.unit, 1u);
}

TEST(ForwardPlan, MasksOfGatesAreSlots) {
    Spec spec = make_spec(CellKind::lstm, {Flag::bidirectional}, {Argument::mask});
    spec.mask_varies = {false, true, true};
    spec.largest = 1u << static_cast<unsigned>(Argument::mask);
    const abi::StepParams params = parameters_of(plan_by_steps(spec, gpu()));
    const abi::Strides& strides = params.strides[abi::kMask];
    const std::int64_t direction = spec.G() * spec.H;
    EXPECT_EQ(std::int64_t{strides.slot}, spec.H);
    EXPECT_EQ(std::int64_t{strides.row}, 2 * direction);
    EXPECT_EQ(strides.step[0], 0);
    EXPECT_EQ(referenced_offset(params.at[2 * abi::kMask + 1]), static_cast<std::uint64_t>(direction) * 4);
}

TEST(ForwardPlan, GruResetBeforeTakesTwoPhases) {
    const Profile profile = gpu();
    EXPECT_EQ(loops(plan_by_steps(make_spec(CellKind::gru), profile))[0].body.size(), 2u);
    const Spec after = make_spec(CellKind::gru, {Flag::reset_after});
    EXPECT_EQ(loops(plan_by_steps(after, profile))[0].body.size(), 1u);
}

TEST(ForwardPlan, EveryDispatchFitsTheDevice) {
    const Profile profile = limited_cpu();
    Spec spec = make_spec(CellKind::lstm);
    spec.T = 1'000'000;
    spec.N = 17;
    const Plan plan = plan_by_steps(spec, profile);
    for (const Dispatch& dispatch : outside_loops(plan)) {
        EXPECT_LE(dispatch.groups[0], 65535u);
        EXPECT_LE(dispatch.groups[1], 65535u);
        EXPECT_GE(std::uint64_t{dispatch.groups[0]} * dispatch.groups[1], 17'000'000u / abi::kRegisterTileM);
    }
}

TEST(GradientPlan, WeightGradientsAreSingleProductsOutsideTheLoop) {
    const Profile profile = limited_cpu();
    const Spec spec =
        gradients_of(make_spec(CellKind::lstm, {}, {Argument::bias, Argument::init_state, Argument::peephole}));
    const Plan plan = plan_by_steps(spec, profile);
    std::vector<std::string> labels;
    for (const Dispatch& dispatch : outside_loops(plan)) labels.push_back(dispatch.label);
    const std::vector<std::string> expected{"recompute",
                                            "transpose",
                                            "initial state",
                                            "gradient of bias",
                                            "gradient of peephole",
                                            "gradient of source",
                                            "gradient of input_weight",
                                            "gradient of recurrent_weight"};
    EXPECT_EQ(labels, expected);
    const Loop loop = loops(plan).at(0);
    EXPECT_EQ(loop.first, 4);
    EXPECT_EQ(loop.increment, -1);
    EXPECT_EQ(loop.count, 5);
}

TEST(GradientPlan, LongSumsAreSplitIfTheDriverEndsLoopsEarly) {
    const Profile profile = limited_cpu();
    Spec spec = gradients_of(make_spec(CellKind::single_gate_rnn));
    spec.T = 100'000;
    const Plan plan = plan_by_steps(spec, profile);
    const auto steps = outside_loops(plan);
    const auto found = std::find_if(steps.begin(), steps.end(),
                                    [](const Dispatch& d) { return d.label == "gradient of recurrent_weight"; });
    ASSERT_NE(found, steps.end());
    abi::GemmPush push;
    std::memcpy(&push, found->push.bytes.data(), sizeof(push));
    EXPECT_EQ(push.k, 300'000u);
    EXPECT_LE(push.chunk, 32768u);
    EXPECT_EQ(found->groups[2], (300'000u + push.chunk - 1) / push.chunk);
}

TEST(GradientPlan, UnusedSecondaryBiasHasZeroGradient) {
    const Profile profile = gpu();
    const Plan plan = plan_by_steps(gradients_of(make_spec(CellKind::gru, {}, {Argument::secondary_bias})), profile);
    const std::size_t buffer = buffer_named(plan, "gradient of secondary_bias");
    EXPECT_TRUE(std::any_of(plan.steps.begin(), plan.steps.end(), [&](const Step& step) {
        return std::holds_alternative<Clear>(step) && std::get<Clear>(step).buffer == buffer;
    }));
}

TEST(GradientPlan, ResultsComeInTheDocumentedOrder) {
    const Profile profile = gpu();
    const Spec spec = gradients_of(
        make_spec(CellKind::lstm, {}, {Argument::init_cell, Argument::init_state, Argument::peephole, Argument::bias}));
    const Plan plan = plan_by_steps(spec, profile);
    std::vector<std::string> names;
    for (const std::size_t buffer : plan.results) names.push_back(plan.buffers[buffer].name);
    const std::vector<std::string> expected{
        "gradient of source",   "gradient of recurrent_weight", "gradient of input_weight", "gradient of bias",
        "gradient of peephole", "gradient of init_state",       "gradient of init_cell"};
    EXPECT_EQ(names, expected);
}

// The text of a plan shows constants by name, those of each strategy among them.
TEST(Plan, NamesTheConstantsOfItsKernels) {
    Kernel kernel{"shader", {8, 0, 1, 0x3210, 0, 3, 0, 2, 0, 0}};
    kernel.constants[4] = abi::to_words(0.25F)[0];
    using As = ConstantName::As;
    kernel.names = {
        {5, "activations", As::activations}, {0, "rows"}, {1, "none"}, {2, "flag", As::flag}, {3, "order", As::slots},
        {4, "number", As::float32}};
    const std::vector<std::pair<std::string_view, ConstantValue>> wanted{
        {"rows", 8U}, {"flag", true}, {"order", "0x3210"}, {"number", 0.25}, {"activations", "sigmoid none tanh"}};
    EXPECT_EQ(named_constants(kernel), wanted);
    kernel.constants = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    EXPECT_TRUE(named_constants(kernel).empty());
}

TEST(Plan, CountsIn32Bits) {
    Spec spec = make_spec(CellKind::lstm);
    spec.I = (std::int64_t{1} << 32) + 8;
    try {
        plan_by_steps(spec, gpu());
        ADD_FAILURE() << "no error";
    } catch (const NotImplementedError& error) {
        EXPECT_STREQ(error.what(),
                     "[lstm] expected at most 4,294,967,295 rows or elements in one kernel, got 4294967304");
    }
}

TEST(LengthsPlan, AreIntegersThatOnlyTheStepsRead) {
    for (const Dtype dtype : kDtypes) {
        for (const Spec& spec : everything()) {
            Spec without = spec;
            without.present &= ~(1u << static_cast<unsigned>(Argument::lengths));
            const Plan plan = plan_of(spec, dtype), plain = plan_of(without, dtype);
            const std::size_t buffer = buffer_named(plan, "lengths");
            EXPECT_EQ(plan.buffers[buffer].role, Role::input);
            EXPECT_EQ(plan.buffers[buffer].bytes, 3u * sizeof(std::int32_t));
            EXPECT_NE(std::ranges::find(plan.inputs, std::pair{Argument::lengths, buffer}), plan.inputs.end());
            EXPECT_EQ(parameters_of(plan).lengths, reference_to(buffer, 0));
            EXPECT_EQ(plan.buffers.size(), plain.buffers.size() + 1);
            EXPECT_EQ(labels_of(plan), labels_of(plain));
            EXPECT_EQ(plan.dispatches(), plain.dispatches());
            ASSERT_EQ(plan.kernels.size(), plain.kernels.size());
            for (std::size_t i = 0; i < plan.kernels.size(); ++i) {
                Kernel kernel = plan.kernels[i];
                EXPECT_EQ(kernel.shader, plain.kernels[i].shader);
                if (kernel.constants.size() == abi::kStepConstants) {
                    EXPECT_EQ(kernel.constants[abi::kHasLengths], 1u);
                    EXPECT_EQ(plain.kernels[i].constants[abi::kHasLengths], 0u);
                    kernel.constants[abi::kHasLengths] = 0;
                }
                EXPECT_EQ(kernel.constants, plain.kernels[i].constants);
            }
        }
    }
}

// Gradients of all cells change one constant, and a view in place of another.
TEST(CellGradientsPlan, IsThatOfTheLastCellsApartFromOneInput) {
    for (const Dtype dtype : kDtypes) {
        Spec spec = everything(CellKind::lstm).back();
        const std::uint32_t bit = 1u << static_cast<unsigned>(Argument::cell_gradient);
        spec.present |= bit;
        const Plan last = plan_of(spec, dtype);
        spec.largest |= bit;
        const Plan every = plan_of(spec, dtype);
        const std::size_t buffer = buffer_named(every, "cell_gradient");
        EXPECT_EQ(every.buffers[buffer].bytes, 5 * last.buffers[buffer].bytes);
        EXPECT_EQ(labels_of(every), labels_of(last));
        ASSERT_EQ(every.kernels.size(), last.kernels.size());
        for (std::size_t i = 0; i < every.kernels.size(); ++i) {
            Kernel kernel = every.kernels[i];
            if (kernel.constants.size() == abi::kStepConstants) {
                EXPECT_EQ(kernel.constants[abi::kHasUpstreamCell], 1u);
                kernel.constants[abi::kHasUpstreamCell] = 0;
            }
            EXPECT_EQ(kernel.constants, last.kernels[i].constants);
        }
        EXPECT_EQ(referenced_buffer(parameters_of(last).at[2 * abi::kLastCell]),
                  referenced_buffer(parameters_of(every).at[2 * abi::kUpstreamCell]));
        EXPECT_EQ(referenced_buffer(parameters_of(every).at[2 * abi::kLastCell]), kZerosBuffer);
        EXPECT_EQ(referenced_buffer(parameters_of(last).at[2 * abi::kUpstreamCell]), kZerosBuffer);
    }
}

TEST(Plan, IsAValue) {
    const Profile profile = gpu();
    const Spec spec = make_spec(CellKind::gru, {Flag::training});
    EXPECT_EQ(plan_by_steps(spec, profile), plan_by_steps(spec, profile));
    Spec other = spec;
    other.N = 2;
    EXPECT_NE(plan_by_steps(spec, profile), plan_by_steps(other, profile));
}

TEST(Plan, DescribesItself) {
    const Profile profile = limited_cpu();
    const std::string text = describe(plan_by_steps(make_spec(CellKind::lstm), profile));
    EXPECT_NE(text.find("lstm  T=5 N=3 I=7 H=4 D=1\n"), std::string::npos) << text;
    EXPECT_NE(text.find("steps: 6 dispatches"), std::string::npos) << text;
    EXPECT_NE(text.find("for k = 0, 1, ... (5 steps)"), std::string::npos) << text;
}

}  // namespace
}  // namespace vkrnn
