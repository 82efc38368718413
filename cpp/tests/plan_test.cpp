// Tests plans without a device: dispatches, views, dtypes, lengths and comparison.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "cpu_work.h"
#include "plan/step_block.h"
#include "portable/portable_abi.h"
#include "vkrnn/error.h"
#include "vkrnn/plan.h"

namespace vkrnn {
namespace {

Spec make_spec(CellKind kind, std::initializer_list<Flag> flags = {}, std::initializer_list<Argument> present = {}) {
    Spec spec;
    spec.descriptor = default_descriptor(kind);
    for (const Flag flag : flags) spec.descriptor.set(flag, true);
    spec.T = 5;
    spec.N = 3;
    spec.I = 7;
    spec.H = 4;
    for (const Argument argument : {Argument::source, Argument::recurrent_weight, Argument::input_weight})
        spec.present |= 1u << static_cast<unsigned>(argument);
    for (const Argument argument : present) spec.present |= 1u << static_cast<unsigned>(argument);
    return spec;
}

Spec gradients_of(Spec spec) {
    spec.gradients = true;
    const Cell& cell = spec.cell();
    for (const Parameter& parameter : cell.gradients)
        if (!parameter.optional) spec.present |= 1u << static_cast<unsigned>(parameter.argument);
    return spec;
}

Profile gpu() {
    Profile profile;
    profile.type = DeviceType::discrete_gpu;
    profile.subgroup_size = 32;
    profile.max_group_count = 65535;
    return profile;
}

Profile limited_cpu() {
    Profile profile;
    profile.type = DeviceType::cpu;
    profile.subgroup_size = 8;
    profile.max_group_count = 65535;
    profile.max_loop_iterations = 65535;
    return profile;
}

// Returns a plan with the portable loop, for any device.
Plan plan_by_steps(const Spec& spec, const Profile& profile) { return make_plan(spec, profile, {"steps", "", {}}); }

std::vector<Dispatch> outside_loops(const Plan& plan) {
    std::vector<Dispatch> found;
    for (const Step& step : plan.steps)
        if (const auto* dispatch = std::get_if<Dispatch>(&step)) found.push_back(*dispatch);
    return found;
}

std::vector<Loop> loops(const Plan& plan) {
    std::vector<Loop> found;
    for (const Step& step : plan.steps)
        if (const auto* loop = std::get_if<Loop>(&step)) found.push_back(*loop);
    return found;
}

std::size_t buffer_named(const Plan& plan, const std::string& name) {
    for (std::size_t i = 0; i < plan.buffers.size(); ++i)
        if (plan.buffers[i].name == name) return i;
    ADD_FAILURE() << "no buffer named " << name;
    return 0;
}

abi::StepParams parameters_of(const Plan& plan) {
    const Block& block = plan.buffers[buffer_named(plan, "parameters")].contents;
    abi::StepParams params;
    std::memcpy(&params, block.bytes.data(), sizeof(params));
    return params;
}

std::vector<std::string> labels_of(const Plan& plan) {
    std::vector<std::string> labels;
    for (const Dispatch& dispatch : outside_loops(plan)) labels.push_back(dispatch.label);
    return labels;
}

// A forward and a gradient call with every argument of the cell, lengths included.
std::vector<Spec> everything(CellKind kind) {
    Spec spec = make_spec(kind, {Flag::bidirectional, Flag::training});
    if (spec.C() > 0) spec.descriptor.set(Flag::produce_cell, true);
    for (const Parameter& parameter : spec.cell().forward)
        spec.present |= 1u << static_cast<unsigned>(parameter.argument);
    Spec gradients = gradients_of(spec);
    gradients.descriptor.set(Flag::training, false);
    return {spec, gradients};
}

std::vector<Spec> everything() {
    std::vector<Spec> specs;
    for (const Cell& cell : cells())
        for (const Spec& spec : everything(cell.kind)) specs.push_back(spec);
    return specs;
}

Plan plan_of(Spec spec, Dtype dtype) {
    Profile profile = gpu();
    profile.float64 = true;
    spec.dtype = dtype;
    return plan_by_steps(spec, profile);
}

bool ends_with(const std::string& text, const std::string& end) {
    return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

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
    const std::vector<std::string> expected{"replay",
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

// Returns a kernel's constants except the floating-point ones, which have another type in float64.
std::vector<std::uint32_t> without_numbers(std::vector<std::uint32_t> constants) {
    if (constants.size() >= abi::kStepConstants)
        constants.erase(constants.begin() + abi::kNumber0, constants.begin() + abi::kStepConstants);
    return constants;
}

TEST(DtypePlan, Float64HasKernelsOfItsOwnAndTwiceTheBytes) {
    for (const Spec& spec : everything()) {
        const Plan narrow = plan_of(spec, Dtype::float32), wide = plan_of(spec, Dtype::float64);
        ASSERT_EQ(wide.kernels.size(), narrow.kernels.size());
        for (std::size_t i = 0; i < wide.kernels.size(); ++i) {
            EXPECT_TRUE(ends_with(wide.kernels[i].shader, "_f64")) << wide.kernels[i].shader;
            EXPECT_EQ(wide.kernels[i].shader, narrow.kernels[i].shader + "_f64");
            EXPECT_EQ(without_numbers(wide.kernels[i].constants), without_numbers(narrow.kernels[i].constants));
        }
        ASSERT_EQ(wide.buffers.size(), narrow.buffers.size());
        for (std::size_t i = 0; i < wide.buffers.size(); ++i) {
            const PlanBuffer &a = narrow.buffers[i], &b = wide.buffers[i];
            EXPECT_EQ(b.name, a.name);
            EXPECT_EQ(b.role, a.role);
            const bool same = a.role == Role::constant || a.name == "lengths";
            EXPECT_EQ(b.bytes, same ? a.bytes : 2 * a.bytes) << a.name;
        }
        EXPECT_EQ(labels_of(wide), labels_of(narrow));
        EXPECT_DOUBLE_EQ(wide.flops, narrow.flops);
    }
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

TEST(DtypePlan, Float64NeedsTheFeature) {
    const Profile profile = gpu();  // without the feature
    Spec spec = make_spec(CellKind::lstm);
    spec.dtype = Dtype::float64;
    try {
        plan_by_steps(spec, profile);
        ADD_FAILURE() << "no error";
    } catch (const NotImplementedError& error) {
        EXPECT_EQ(std::string(error.what()),
                  "[lstm] float64 needs the device feature shaderFloat64, which " + profile.name + " does not have");
    }
}

// Steps before and after are conversions; between them is the float32 plan with its buffers renumbered.
TEST(DtypePlan, SixteenBitsConvertInputsAndResultsAndNothingElse) {
    for (const Dtype dtype : {Dtype::float16, Dtype::bfloat16}) {
        for (const Spec& spec : everything()) {
            const Plan full = plan_of(spec, Dtype::float32), half = plan_of(spec, dtype);

            // The caller's buffers have half the size, and each has a float32 copy.
            const auto check_pair = [&](std::size_t in_full, std::size_t in_half) {
                const PlanBuffer &a = full.buffers[in_full], &b = half.buffers[in_half];
                EXPECT_EQ(b.name, a.name);
                EXPECT_EQ(b.role, a.role);
                if (a.name == "lengths") {
                    EXPECT_EQ(b.bytes, a.bytes);
                    return;
                }
                EXPECT_EQ(2 * b.bytes, a.bytes);
                const PlanBuffer& copy = half.buffers[buffer_named(half, a.name + " in float32")];
                EXPECT_EQ(copy.role, Role::scratch);
                EXPECT_EQ(copy.bytes, a.bytes);
            };
            ASSERT_EQ(half.inputs.size(), full.inputs.size());
            for (std::size_t i = 0; i < full.inputs.size(); ++i) {
                EXPECT_EQ(half.inputs[i].first, full.inputs[i].first);
                check_pair(full.inputs[i].second, half.inputs[i].second);
            }
            ASSERT_EQ(half.results.size(), full.results.size());
            for (std::size_t i = 0; i < full.results.size(); ++i) check_pair(full.results[i], half.results[i]);

            std::vector<std::string> expected;
            for (const auto& [argument, buffer] : full.inputs)
                if (argument != Argument::lengths) expected.push_back("widen " + full.buffers[buffer].name);
            for (const std::string& label : labels_of(full)) expected.push_back(label);
            for (const std::size_t result : full.results) expected.push_back("narrow " + full.buffers[result].name);
            EXPECT_EQ(labels_of(half), expected);

            std::vector<Kernel> kernels;
            for (const Kernel& kernel : half.kernels) {
                if (kernel.shader != "convert") {
                    kernels.push_back(kernel);
                    continue;
                }
                EXPECT_EQ(kernel.constants[abi::kConvertBfloat], dtype == Dtype::bfloat16 ? 1u : 0u);
            }
            EXPECT_EQ(kernels, full.kernels);
            EXPECT_DOUBLE_EQ(half.flops, full.flops);
        }
    }
}

TEST(DtypePlan, ConversionsCoverEveryElementAndWaitForTheirInput) {
    const Plan plan = plan_of(everything(CellKind::lstm).back(), Dtype::float16);
    for (const Dispatch& dispatch : outside_loops(plan)) {
        const Kernel& kernel = plan.kernels[dispatch.kernel];
        if (kernel.shader != "convert") continue;
        abi::ConvertPush push;
        std::memcpy(&push, dispatch.push.bytes.data(), sizeof(push));
        const bool narrow = kernel.constants[abi::kConvertNarrow] != 0;
        const PlanBuffer& small = plan.buffers[referenced_buffer(narrow ? push.out_ : push.in_)];
        const PlanBuffer& large = plan.buffers[referenced_buffer(narrow ? push.in_ : push.out_)];
        EXPECT_EQ(small.bytes, 2 * std::uint64_t{push.count}) << dispatch.label;
        EXPECT_EQ(large.bytes, 4 * std::uint64_t{push.count}) << dispatch.label;
        EXPECT_GE(std::uint64_t{dispatch.groups[0]} * dispatch.groups[1] * abi::kElementwiseGroup * abi::kConvertEach,
                  push.count);
    }
    // The first step after the conversions waits for them, and the first narrowing for all steps before it.
    const auto steps = outside_loops(plan);
    const auto is_widening = [](const Dispatch& d) { return d.label.rfind("widen ", 0) == 0; };
    const auto is_narrowing = [](const Dispatch& d) { return d.label.rfind("narrow ", 0) == 0; };
    const auto computes = std::find_if_not(steps.begin(), steps.end(), is_widening);
    const auto narrows = std::find_if(steps.begin(), steps.end(), is_narrowing);
    ASSERT_NE(computes, steps.end());
    ASSERT_NE(narrows, steps.end());
    EXPECT_TRUE(computes->after);
    EXPECT_TRUE(narrows->after);
}

TEST(DtypePlan, ReadersOfConvertedInputsWaitForThem) {
    Profile profile = gpu();
    profile.matrix_side = 16;
    profile.max_workgroup_invocations = profile.max_workgroup_size_x = 1024;
    profile.max_shared_memory = 48 << 10;
    for (const std::string schedule : {"steps", "tiles", "slices", "matrices", "persistent"}) {
        Spec spec = make_spec(CellKind::lstm, {Flag::training});
        spec.present &= ~(1u << static_cast<unsigned>(Argument::input_weight));
        spec.I = 4 * spec.H;
        for (Spec call : {spec, gradients_of(spec)}) {
            call.dtype = Dtype::float16;
            const Plan plan = make_plan(call, profile, {schedule, "tiled", {}});
            bool fresh = false;  // whether a conversion has run since the last wait
            for (const Dispatch& dispatch : outside_loops(plan)) {
                if (dispatch.after) fresh = false;
                if (plan.kernels[dispatch.kernel].shader == "convert") fresh = true;
                const bool reads = dispatch.label.find("pack") != std::string::npos || dispatch.label == "start";
                EXPECT_FALSE(reads && fresh) << schedule << ": " << dispatch.label;
            }
        }
    }
}

// Returns a device with matrix units whose kernels access 16-bit types.
Profile gpu_with_16_bits() {
    Profile profile = gpu();
    profile.matrix_side = 16;
    profile.max_workgroup_invocations = profile.max_workgroup_size_x = 1024;
    profile.max_shared_memory = 48 << 10;
    profile.storage_16bit = true;
    return profile;
}

// The same calls, with an activation that suits the matrix units, and one phase where a loop cannot run two.
std::vector<Spec> everything_for(const std::string& schedule) {
    std::vector<Spec> specs = everything();
    for (Spec& spec : specs) {
        if (spec.cell().kind == CellKind::single_gate_rnn) spec.descriptor.activations[0] = Activation::tanh;
        if (schedule == "slices" || schedule == "persistent")
            spec.descriptor.set(Flag::reset_after, spec.cell().kind == CellKind::gru);
    }
    return specs;
}

// Only the gradients that later steps read have a float32 copy. Apart from these, a plan has the steps of float32.
TEST(DtypePlan, KernelsAccessSixteenBits) {
    for (const std::string schedule : {"steps", "tiles", "slices", "matrices", "persistent"}) {
        for (Spec spec : everything_for(schedule)) {
            const std::string gemm = schedule == "matrices" ? "matrices" : "tiled";
            const Plan full = make_plan(spec, gpu_with_16_bits(), {schedule, gemm, {}});
            spec.dtype = Dtype::bfloat16;
            const Plan half = make_plan(spec, gpu_with_16_bits(), {schedule, gemm, {}});

            std::vector<std::string> expected = labels_of(full);
            for (const std::size_t result : half.results) {
                const std::string& name = half.buffers[result].name;
                const bool is_read = name.starts_with("gradient of init_");
                const auto is_copy = [&](const PlanBuffer& buffer) { return buffer.name == name + " in float32"; };
                EXPECT_EQ(std::ranges::count_if(half.buffers, is_copy), is_read ? 1 : 0) << schedule << ' ' << name;
                if (is_read) expected.push_back("narrow " + name);
            }
            // The gradient of a candidate's weights may be a product of its own.
            std::vector<std::string> labels = labels_of(half);
            for (std::vector<std::string>* each : {&labels, &expected})
                each->erase(std::ranges::unique(*each).begin(), each->end());
            EXPECT_EQ(labels, expected);
            for (const Kernel& kernel : half.kernels) {
                EXPECT_EQ(ends_with(kernel.shader, "_16bit"), kernel.constants.size() > abi::kStored) << kernel.shader;
                if (kernel.constants.size() <= abi::kStored) continue;
                EXPECT_EQ(kernel.constants[abi::kStored] >> abi::kStoredBfloat, 1u) << kernel.shader;
            }
        }
    }
}

// A kernel must read each tensor in the type that the plan's buffer has. Buffers that kernels read in place of absent
// tensors are zeros.
TEST(DtypePlan, ViewsHaveTheTypesOfTheirBuffers) {
    for (const std::string schedule : {"steps", "tiles", "slices", "matrices", "persistent"}) {
        for (Spec spec : everything_for(schedule)) {
            spec.dtype = Dtype::float16;
            const Plan plan = make_plan(spec, gpu_with_16_bits(), {schedule, "tiled", {}});
            for (const Loop& loop : loops(plan))
                for (const Dispatch& dispatch : loop.body) {
                    const std::vector<std::uint32_t>& constants = plan.kernels[dispatch.kernel].constants;
                    abi::StepParams params;
                    const Block& block = plan.buffers[referenced_buffer(reference_at(dispatch.push, 0))].contents;
                    std::memcpy(&params, block.bytes.data(), sizeof(params));
                    for (std::uint32_t view = 0; view < abi::kViews; ++view) {
                        const PlanBuffer& buffer = plan.buffers[referenced_buffer(params.at[2 * view])];
                        if (buffer.name == "zeros") continue;
                        const bool is_caller = buffer.role == Role::input || buffer.role == Role::result;
                        EXPECT_EQ(constants[abi::kStored] >> view & 1, is_caller ? 1u : 0u) << buffer.name;
                    }
                }
        }
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
            EXPECT_EQ(plan.inputs.back(), (std::pair{Argument::lengths, buffer}));
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
