// Tests how plans differ by dtype, without a device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>

#include "plan_specs.h"
#include "portable/portable_abi.h"
#include "vkrnn/error.h"

namespace vkrnn {
namespace {

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

// A plan begins and ends with conversions. Between them is the float32 plan with its buffers renumbered.
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
    for (const std::string schedule : {"steps", "tiles", "slices", "split", "matrices", "persistent"}) {
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

Spec without_blends(Spec spec) {
    for (const Argument argument : {Argument::zoneout_cell_mask, Argument::leak, Argument::output_fwd})
        if (argument != Argument::output_fwd || spec.cell().kind != CellKind::gru)
            spec.present &= ~(1u << static_cast<unsigned>(argument));
    return spec;
}

// Returns the calls of everything(), changed so that the loop strategy can run them: with bounded activations, with
// resets of bool, without blends if they would leave h without a bound or the strategy has none, and with one phase if
// it cannot run two.
std::vector<Spec> everything_for(const std::string& schedule) {
    std::vector<Spec> specs = everything();
    for (Spec& spec : specs) spec.bool_reset = true;
    for (Spec& spec : specs) {
        if (schedule != "steps" && schedule != "tiles") spec = without_blends(spec);
        if (spec.cell().kind == CellKind::single_gate_rnn) spec.descriptor.activations[0] = Activation::tanh;
        if (schedule == "slices" || schedule == "persistent" || schedule == "split")
            spec.descriptor.set(Flag::reset_after, spec.cell().kind == CellKind::gru);
        if (!spec.cell().bounds_need_zero_cells) continue;
        spec.present &= ~(1u << static_cast<unsigned>(Argument::reset_cell));
        for (const StateTensors& state : spec.cell_tensors())
            spec.present &= ~(1u << static_cast<unsigned>(state.initial));
    }
    return specs;
}

// Only gradients that later steps read have a float32 copy. Apart from the conversions of these, a plan has the steps
// of a float32 plan.
TEST(DtypePlan, KernelsAccessSixteenBits) {
    for (const std::string schedule : {"steps", "tiles", "slices", "split", "matrices", "persistent"}) {
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
                EXPECT_EQ(kernel.constants[abi::kStoredHigh] >> abi::kStoredBfloat, 1u) << kernel.shader;
            }
        }
    }
}

// Returns a device of the same kind with a library that multiplies operands of one type.
Profile gpu_with_a_library() {
    Profile profile = gpu_with_16_bits();
    profile.backend = Backend::cuda;
    profile.product_library = true;
    return profile;
}

// Returns one bit for each tensor of a kernel, which is set if it is in a 16-bit type.
std::uint64_t stored(const Kernel& kernel) {
    const std::uint64_t high = kernel.constants[abi::kStoredHigh] & ~(1u << abi::kStoredBfloat);
    return high << 32u | kernel.constants[abi::kStored];
}

// Returns the names of the buffers of a loop's views that are in a 16-bit type, or of those that are not.
std::set<std::string> buffers_of_loop(const Plan& plan, bool in_16_bits) {
    std::set<std::string> names;
    for (const Loop& loop : loops(plan))
        for (const Dispatch& dispatch : loop.body) {
            if (!dispatch.counter) continue;  // a product
            const std::uint64_t bits = stored(plan.kernels[dispatch.kernel]);
            abi::StepParams params;
            const Block& block = plan.buffers[referenced_buffer(reference_at(dispatch.push, 0))].contents;
            std::memcpy(&params, block.bytes.data(), sizeof(params));
            for (std::uint32_t view = 0; view < abi::kViews; ++view) {
                const std::size_t buffer = referenced_buffer(params.at[2 * view]);
                if (buffer == PlanBuilder::kZeros) continue;  // read in place of absent tensors, in any type
                if ((bits >> view & 1) == (in_16_bits ? 1u : 0u)) names.insert(plan.buffers[buffer].name);
            }
        }
    return names;
}

// A kernel must read each tensor in the type that the plan's buffer has.
TEST(DtypePlan, ViewsHaveTheTypesOfTheirBuffers) {
    for (const std::string schedule : {"steps", "tiles", "slices", "split", "matrices", "persistent"}) {
        for (Spec spec : everything_for(schedule)) {
            spec.dtype = Dtype::float16;
            const Plan plan = make_plan(spec, gpu_with_16_bits(), {schedule, "tiled", {}});
            for (const bool in_16_bits : {false, true})
                for (const std::string& name : buffers_of_loop(plan, in_16_bits)) {
                    const Role role = plan.buffers[buffer_named(plan, name)].role;
                    EXPECT_EQ(role == Role::input || role == Role::result, in_16_bits) << name;
                }
        }
    }
}

// The loop of `slices` loads what comes before the first step as if it were a step's.
TEST(DtypePlan, AbsentInitialCellsHaveTheTypeOfTheCells) {
    for (const CellKind kind : {CellKind::lstm, CellKind::slstm}) {
        Spec spec = gradients_of(make_spec(kind));
        spec.dtype = Dtype::bfloat16;
        const Plan plan = make_plan(spec, gpu_with_16_bits(), {"slices", "tiled", {}});
        for (const Loop& loop : loops(plan))
            for (const Dispatch& dispatch : loop.body) {
                const std::uint64_t bits = stored(plan.kernels[dispatch.kernel]);
                EXPECT_EQ(bits >> abi::kInitCell & 1, bits >> abi::kCell & 1);
            }
    }
}

std::vector<std::string> conversions_of(const Plan& plan) {
    std::vector<std::string> labels;
    for (const Dispatch& dispatch : outside_loops(plan))
        if (plan.kernels[dispatch.kernel].shader == "convert") labels.push_back(dispatch.label);
    return labels;
}

// Loops store deltas and operands in the type that the library reads, unless a later step reads them.
TEST(DtypePlan, LoopsStoreWhatALibraryReads) {
    const std::set<std::string> operands{"delta", "recurrent delta", "operand", "scaled operand"};
    const auto among_operands = [&](const std::set<std::string>& names) {
        std::set<std::string> found;
        std::ranges::set_intersection(names, operands, std::inserter(found, found.end()));
        return found;
    };
    for (const std::string schedule : {"steps", "tiles", "slices", "split", "matrices", "persistent"}) {
        std::vector<Spec> specs = everything_for(schedule);
        specs.push_back(without_blends(everything(CellKind::gru).back()));
        specs.back().descriptor.set(Flag::reset_after, true);
        for (Spec& spec : specs) {
            spec.dtype = Dtype::float16;
            // Float16 may not hold the product of the initial state and a mask.
            if (schedule == "split" && !spec.gradients) spec.present &= ~(1u << static_cast<unsigned>(Argument::mask));
            const Plan plan = make_plan(spec, gpu_with_a_library(), {schedule, "cublas", {}});
            std::vector<std::string> expected;
            if (spec.gradients) {
                const bool reads_deltas = schedule == "steps" || spec.two_phases();
                std::set<std::string> narrow{"operand"}, wide;
                (reads_deltas ? wide : narrow).insert("delta");
                if (spec.scales_product()) (reads_deltas ? wide : narrow).insert("recurrent delta");
                if (spec.two_phases()) {
                    narrow = {"scaled operand"};
                    wide.insert("operand");
                }
                EXPECT_EQ(among_operands(buffers_of_loop(plan, true)), narrow) << schedule;
                EXPECT_EQ(among_operands(buffers_of_loop(plan, false)), wide) << schedule;
                if (reads_deltas) expected.push_back("narrow delta");
                if (spec.two_phases()) expected.push_back("narrow operand");
                if (reads_deltas && spec.scales_product()) expected.push_back("narrow recurrent delta");
                expected.push_back("narrow gradient of init_state");
                if (spec.has(Argument::init_cell)) expected.push_back("narrow gradient of init_cell");
            }
            EXPECT_EQ(conversions_of(plan), expected) << schedule << ' ' << spec.cell().shader;
        }
    }
}

// Operands of bfloat16 calls are stored in bfloat16, which saves memory. Those of float16 calls need float32's range
// until they are scaled.
TEST(DtypePlan, LoopsStoreBfloat16ForMatrixUnits) {
    const auto narrow_buffers = [](Dtype dtype) {
        Spec spec = gradients_of(make_spec(CellKind::lstm));
        spec.dtype = dtype;
        return buffers_of_loop(make_plan(spec, gpu_with_a_library(), {"persistent", "matrices", {}}), true);
    };
    EXPECT_TRUE(narrow_buffers(Dtype::bfloat16).contains("delta"));
    EXPECT_TRUE(narrow_buffers(Dtype::bfloat16).contains("operand"));
    EXPECT_FALSE(narrow_buffers(Dtype::float16).contains("delta"));
    EXPECT_FALSE(narrow_buffers(Dtype::float16).contains("operand"));
}

// Weights usually change between calls for training, so their arrays do not keep large blocks.
TEST(DtypePlan, ArraysKeepNoLargeBlocksForTraining) {
    const auto kept = [](Spec spec, std::int64_t N, std::int64_t units) {
        spec.dtype = Dtype::float16;
        spec.T = 16;
        spec.N = N;
        spec.I = spec.H = units;
        const Plan plan = make_plan(spec, gpu_with_a_library(), {"matrices", "matrices", {}});
        return std::ranges::count(plan.buffers, Role::prepacked, &PlanBuffer::role);
    };
    const Spec training = make_spec(CellKind::lstm, {Flag::training});
    EXPECT_EQ(kept(make_spec(CellKind::lstm), 64, 1024), 2);
    EXPECT_EQ(kept(training, 64, 1024), 0);
    EXPECT_EQ(kept(gradients_of(training), 64, 1024), 0);
    EXPECT_EQ(kept(training, 32, 1024), 2);  // there packing takes more of the call's time
    EXPECT_EQ(kept(training, 64, 256), 2);
}

// If slices need several dispatches, each reads deltas of the dispatch before.
TEST(DtypePlan, SlicesOfSeveralDispatchesKeepDeltasInFloat32) {
    Spec spec = gradients_of(make_spec(CellKind::lstm));
    spec.dtype = Dtype::bfloat16;
    const auto conversions = [&](std::uint32_t steps) {
        return conversions_of(make_plan(spec, gpu_with_a_library(), {"slices", "cublas", {{"slice_steps", steps}}}));
    };
    EXPECT_EQ(conversions(5), (std::vector<std::string>{}));
    EXPECT_EQ(conversions(4), (std::vector<std::string>{"narrow delta"}));
}

// Without an input weight, the deltas are the gradient of the source.
TEST(DtypePlan, DeltasMayBeTheCallers) {
    Spec spec = gradients_of(make_spec(CellKind::lstm));
    spec.dtype = Dtype::float16;
    spec.present &= ~(1u << static_cast<unsigned>(Argument::input_weight));
    spec.I = 4 * spec.H;
    const auto conversions = [&](const char* gemm) {
        return conversions_of(make_plan(spec, gpu_with_a_library(), {"matrices", gemm, {}}));
    };
    EXPECT_EQ(conversions("tiled"), (std::vector<std::string>{"narrow gradient of source"}));
    EXPECT_EQ(conversions("cublas"), (std::vector<std::string>{}));
}

}  // namespace
}  // namespace vkrnn
