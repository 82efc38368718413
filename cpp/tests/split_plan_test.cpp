// Tests the loop that splits each step into a product and the cells.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "plan/library_product.h"
#include "plan_specs.h"
#include "split/split_abi.h"
#include "strategy_calls.h"

namespace vkrnn {
namespace {

Profile with_a_library() {
    Profile profile = with_matrix_units();
    profile.backend = Backend::cuda;
    profile.storage_16bit = true;
    profile.product_library = true;
    return profile;
}

Spec lstm(std::int64_t N, std::int64_t H, Dtype dtype, bool gradients) {
    Spec spec = make_spec(CellKind::lstm);
    if (gradients) spec = gradients_of(spec);
    spec.T = 8;
    spec.N = N;
    spec.I = spec.H = H;
    spec.dtype = dtype;
    return spec;
}

Plan plan_of(const Spec& spec) { return make_plan(spec, with_a_library(), {"split", "cublas", {}}); }

struct Step {
    LibraryProduct product;
    Kernel cells;
    std::int64_t count;
};

// Returns the only loop's two dispatches.
Step step_of(const Plan& plan) {
    Step found{};
    for (const vkrnn::Step& step : plan.steps) {
        const auto* loop = std::get_if<Loop>(&step);
        if (loop == nullptr) continue;
        EXPECT_EQ(loop->body.size(), 2u);
        EXPECT_TRUE(is_library_product(plan.kernels[loop->body[0].kernel]));
        EXPECT_FALSE(loop->body[0].counter.has_value()) << "the product uses the same memory in each step";
        std::memcpy(&found.product, loop->body[0].push.bytes.data(), sizeof found.product);
        found.cells = plan.kernels[loop->body[1].kernel];
        found.count = loop->count;
    }
    return found;
}

TEST(SplitPlan, MultipliesEachStepsStateByTheWeights) {
    const Plan plan = plan_of(lstm(64, 2048, Dtype::bfloat16, false));
    const Step step = step_of(plan);
    EXPECT_EQ(step.count, 8);
    EXPECT_EQ(step.product.m, 64);
    EXPECT_EQ(step.product.n, 4 * 2048);
    EXPECT_EQ(step.product.k, 2048);
    EXPECT_EQ(step.product.batches, 1);
    EXPECT_EQ(plan.buffers[referenced_buffer(step.product.a)].bytes, 2u * 64 * 2048) << "in 16 bits";
    EXPECT_EQ(plan.buffers[referenced_buffer(step.product.c)].bytes, 4u * 64 * 4 * 2048) << "in float32";
}

// The last step has no later one. Its cells come before the loop.
TEST(SplitPlan, AddsUpPartsOfABackwardProduct) {
    const Step step = step_of(plan_of(lstm(64, 512, Dtype::bfloat16, true)));
    EXPECT_EQ(step.count, 7);
    EXPECT_EQ(step.product.batches, 4) << "one for each gate";
    EXPECT_EQ(step.product.k, 512);
    EXPECT_EQ(step.cells.constants.at(abi::kSplitParts), 4u);
    EXPECT_EQ(step.cells.constants.at(abi::kSplitBlocks), 0u) << "bfloat16 has float32's range";
}

TEST(SplitPlan, ScalesBlocksOfDeltasInFloat16) {
    const auto constants = [](std::int64_t H) {
        const Plan plan = plan_of(lstm(64, H, Dtype::float16, true));
        const Step step = step_of(plan);
        EXPECT_EQ(step.product.batches * step.product.k, 4 * H);
        EXPECT_EQ(step.product.k, step.cells.constants.at(abi::kSplitUnits)) << "a part has one scale";
        return std::pair(step.cells.constants.at(abi::kSplitUnits), step.cells.constants.at(abi::kSplitBlocks));
    };
    EXPECT_EQ(constants(512), std::pair(512u, 1u));
    EXPECT_EQ(constants(2048), std::pair(1024u, 2u));
    EXPECT_EQ(constants(1500), std::pair(750u, 2u));
    EXPECT_EQ(constants(1503), std::pair(501u, 3u)) << "blocks have the same size";
    EXPECT_THROW(plan_of(lstm(64, 1031, Dtype::float16, true)), NotImplementedError) << "a prime number";
    EXPECT_NO_THROW(plan_of(lstm(64, 1031, Dtype::bfloat16, true)));
}

// By bench/results/split-h200.txt.
TEST(SplitPlan, IsChosenForLargeProductsInSixteenBits) {
    const auto schedule = [](const Spec& spec) { return make_plan(spec, with_a_library()).choice.schedule; };
    for (const bool gradients : {false, true}) {
        EXPECT_EQ(schedule(lstm(96, 2048, Dtype::float16, gradients)), "split");
        EXPECT_EQ(schedule(lstm(256, 1024, Dtype::bfloat16, gradients)), "split");
        EXPECT_NE(schedule(lstm(16, 512, Dtype::float16, gradients)), "split");
        EXPECT_NE(schedule(lstm(96, 2048, Dtype::float32, gradients)), "split") << "with all digits";
        EXPECT_NE(make_plan(lstm(96, 2048, Dtype::float16, gradients), with_matrix_units()).choice.schedule, "split")
            << "without the library";
    }
}

TEST(SplitPlan, RefusesFloat16WhereTheOperandMayBeTooLarge) {
    Spec spec = lstm(64, 2048, Dtype::float16, false);
    for (const Argument each : {Argument::init_state, Argument::mask})
        spec.present |= 1u << static_cast<unsigned>(each);
    EXPECT_THROW(plan_of(spec), NotImplementedError);
    spec.dtype = Dtype::bfloat16;
    EXPECT_NO_THROW(plan_of(spec));
}

// In the second of two phases, the operand is h times the reset gate.
TEST(SplitPlan, RefusesFloat16IfTheResetGateIsUnbounded) {
    Spec spec = lstm(64, 2048, Dtype::float16, false);
    spec.descriptor = default_descriptor(CellKind::gru);
    EXPECT_NO_THROW(plan_of(spec));
    spec.descriptor.activations[1] = Activation::relu;
    EXPECT_THROW(plan_of(spec), NotImplementedError);
    spec.descriptor.set(Flag::reset_after, true);
    EXPECT_NO_THROW(plan_of(spec)) << "one phase";
}

}  // namespace
}  // namespace vkrnn
