// Tests the choice of strategies from a call's spec and the device's profile.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "matrices/matrices_abi.h"
#include "plan/library_product.h"
#include "strategy_calls.h"
#include "vkrnn/costs.h"

namespace vkrnn {
namespace {

TEST(Strategy, SuitsTheDevice) {
    const StrategyChoice gpu = chosen(profile_of(DeviceType::discrete_gpu, 32, 1024));
    EXPECT_EQ(gpu.schedule, "tiles");
    EXPECT_EQ(gpu.gemm, "tiled");
    EXPECT_EQ(chosen(with_matrix_units()).schedule, "slices") << "a small call";
    EXPECT_EQ(chosen(profile_of(DeviceType::integrated_gpu, 64, 128)).gemm, "register")
        << "a tile needs more invocations than a workgroup has";
    const StrategyChoice cpu{"steps", "register", {{"lanes", 1}, {"rows", 8}, {"workgroup", 8}}};
    EXPECT_EQ(chosen(profile_of(DeviceType::cpu, 8, 1024)), cpu);
    EXPECT_EQ(chosen(native()), (StrategyChoice{"native", "native", {}}));
}

TEST(Strategy, OfAGpuIsUsedOnACpuOnlyOnRequest) {
    Profile profile = with_matrix_units();
    profile.type = DeviceType::cpu;
    profile.registers = 0;
    EXPECT_EQ(chosen(profile).schedule, "steps");
    for (const char* schedule : {"tiles", "slices", "split", "matrices", "persistent"})
        EXPECT_EQ(chosen(profile, {schedule, "", {}}).schedule, schedule);
}

TEST(Strategy, IsChosenByTheCostsOfAnotherGpuWhereThereAreNone) {
    Profile profile = with_matrix_units();
    profile.name = "NVIDIA H100 80GB HBM3";
    EXPECT_EQ(borrowed_costs(profile), "");
    const std::vector<double> costs = cost_values(profile);
    profile.name = "AMD Radeon RX 7900 XTX";
    EXPECT_EQ(borrowed_costs(profile),
              "no costs were measured on AMD Radeon RX 7900 XTX: strategies are chosen by those of an NVIDIA H200; "
              "python -m vkrnn tune measures this device");
    EXPECT_EQ(cost_values(profile), costs);
    profile.type = DeviceType::cpu;
    EXPECT_EQ(borrowed_costs(profile), "");
    EXPECT_NE(cost_values(profile), costs);
}

// Calls get the strategies with the lowest estimates.
TEST(Strategy, HasTheEstimateThatItIsChosenBy) {
    const Profile profile = with_matrix_units();
    const std::vector<double> costs = cost_values(profile);
    const auto schedule = [&](const char* name) {
        const StrategyChoice fixed = chosen(profile, {name, "tiled", {}});
        return estimate(small_call(), profile, fixed, costs).schedule;
    };
    EXPECT_GT(schedule("slices"), 0);
    for (const char* name : {"steps", "tiles", "matrices", "persistent"}) EXPECT_LT(schedule("slices"), schedule(name));
    std::vector<double> doubled = costs;
    for (double& cost : doubled) cost *= 2;
    const StrategyChoice fixed = chosen(profile, {"steps", "tiled", {}});
    EXPECT_NE(estimate(small_call(), profile, fixed, doubled).schedule, schedule("steps"));
}

TEST(Strategy, IsAmongThoseListed) {
    const auto listed = [](const Profile& profile) {
        const StrategyNames names = list_strategies(profile);
        return std::pair(names.schedule, names.gemm);
    };
    using Names = std::vector<std::string>;
    EXPECT_EQ(listed(native()), std::pair(Names{"native"}, Names{"native"}));
    EXPECT_EQ(listed(profile_of(DeviceType::cpu, 8, 1024)),
              std::pair(Names{"steps", "tiles", "slices", "split"}, Names{"register", "tiled"}));
    EXPECT_EQ(listed(profile_of(DeviceType::cpu, 8, 128)),
              std::pair(Names{"steps", "tiles", "slices"}, Names{"register"}));
    EXPECT_EQ(listed(with_matrix_units()),
              std::pair(Names{"steps", "tiles", "slices", "matrices", "persistent", "split"},
                        Names{"register", "tiled", "matrices"}));
    Profile wide = with_matrix_units();
    wide.subgroup_size = 64;
    EXPECT_EQ(listed(wide), std::pair(Names{"steps", "tiles", "slices", "split"}, Names{"register", "tiled"}))
        << "an invocation would hold four elements of a matrix instead of eight";
    Profile amd = profile_of(DeviceType::discrete_gpu, 64, 1024);
    amd.vendor_id = 0x1002;
    EXPECT_EQ(listed(amd), std::pair(Names{"steps", "tiles", "split"}, Names{"register", "tiled"}))
        << "its compilers would keep a slice's weights in memory";
}

TEST(Strategy, TakesItsParametersFromTheCallUnlessFixed) {
    const Profile profile = with_matrix_units();
    const auto parameters_of = [&](std::int64_t N, std::int64_t H, const char* schedule) {
        Spec spec = small_call();
        spec.N = N;
        spec.I = spec.H = H;
        return make_plan(spec, profile, {schedule, "", {}}).choice.parameters;
    };
    for (const char* schedule : {"tiles", "slices", "matrices"}) {
        EXPECT_NE(parameters_of(1, 64, schedule), parameters_of(64, 256, schedule)) << schedule;
        EXPECT_EQ(parameters_of(64, 256, schedule), parameters_of(64, 256, schedule)) << schedule;
    }
}

// If the weights exceed the registers, a forward loop keeps their first block and loads the others in every step. So
// does a backward loop whose operands are rounded, with some blocks. Others have a dispatch for each step.
TEST(Strategy, KeepsOneBlockOfWeightsIfNotAllFit) {
    Profile profile = with_matrix_units();
    profile.compute_units = 132;
    const auto choice_of = [&](std::int64_t N, std::int64_t H, bool gradients, const StrategyChoice& fixed = {},
                               Precision precision = Precision::ieee) {
        Spec spec = small_call();
        spec.precision = precision;
        spec.T = N;
        spec.N = N;
        spec.I = spec.H = H;
        spec.gradients = gradients;
        return make_plan(spec, profile, fixed).choice;
    };
    const StrategyChoice small = choice_of(64, 512, false), large = choice_of(64, 1024, false);
    EXPECT_EQ(small.schedule, "persistent");
    EXPECT_GT(small.parameters.at("kept_blocks"), 1u);
    EXPECT_EQ(large.schedule, "persistent");
    EXPECT_EQ(large.parameters.at("kept_blocks"), 1u);
    EXPECT_EQ(choice_of(64, 1024, true).schedule, "matrices");
    const StrategyChoice rounded = choice_of(64, 1024, true, {}, Precision::tf32);
    EXPECT_EQ(rounded.schedule, "persistent");
    EXPECT_EQ(rounded.parameters.at("kept_blocks"), 8u) << "of 16 that a subgroup multiplies";
    EXPECT_EQ(choice_of(64, 1024, false, {}, Precision::tf32).parameters.at("kept_blocks"), 8u) << "all, with one part";
    EXPECT_EQ(choice_of(512, 1024, false).schedule, "matrices") << "more workgroups than run at the same time";
    EXPECT_EQ(choice_of(64, 2048, false).schedule, "matrices") << "weights that exceed the cache";
    EXPECT_EQ(choice_of(64, 2048, false, {"persistent", "", {}}).parameters.at("kept_blocks"), 1u)
        << "slower, but it runs";
    EXPECT_EQ(choice_of(16, 256, false).parameters.at("tagged"), 1u);
    EXPECT_EQ(large.parameters.at("tagged"), 0u) << "every step loads all weights and the words to wait for";
    EXPECT_THROW(choice_of(64, 1024, false, {"persistent", "", {{"tagged", 1}}}), NotImplementedError);
    EXPECT_EQ(refusal<ValueError>({"persistent", "", {{"kept_blocks", 0}}}, profile),
              "[Device] kept_blocks: expected 1 or more, got 0");
    EXPECT_EQ(refusal<ValueError>({"persistent", "", {{"tagged", 2}}}, profile),
              "[Device] tagged: expected 0 or 1, got 2");
    EXPECT_EQ(refusal<ValueError>({"matrices", "", {{"blocks_ahead", 3}}}, profile),
              "[Device] blocks_ahead: expected 1 or 2, got 3");
}

// The sums of all depth groups are in shared memory at once if a launch may give a kernel as much.
TEST(Strategy, UsesTheSharedMemoryThatALaunchMayGive) {
    Profile profile = with_matrix_units();
    Spec spec = small_call();
    spec.N = 64;
    spec.I = spec.H = 256;
    constexpr std::uint32_t kBytesOfASlot = 32 * (64 + 8) * 4;
    const auto slots_and_bytes = [&] {
        const Parameters shape{{"matrix_rows", 2}, {"matrix_columns", 2}, {"column_groups", 2}, {"depth_groups", 8}};
        const Plan plan = make_plan(spec, profile, {"matrices", "", shape});
        const auto kernel = std::ranges::find(plan.kernels, "lstm_matrices_forward", &Kernel::shader);
        std::uint32_t bytes = 0;
        for (const Step& step : plan.steps)
            if (const Loop* loop = std::get_if<Loop>(&step)) bytes = loop->body.front().launch_shared_memory;
        return std::pair(kernel->constants.at(abi::kMatrixSumSlots), bytes);
    };
    EXPECT_EQ(slots_and_bytes(), std::pair(4U, 4 * kBytesOfASlot)) << "of 48 KB";
    profile.max_launch_shared_memory = 227 << 10;
    EXPECT_EQ(slots_and_bytes(), std::pair(8U, 8 * kBytesOfASlot));
}

// Where a launch may give a kernel enough shared memory, it holds weights that registers would hold or steps would
// load.
TEST(Strategy, PutsWeightsOfOnePartIntoSharedMemory) {
    Profile profile = with_matrix_units();
    profile.compute_units = 132;
    struct Made {
        std::uint32_t kept, shared, bytes;
        bool streams;
        bool operator==(const Made&) const = default;
    };
    const auto made = [&](std::uint32_t rows, std::int64_t H, Precision precision) {
        Spec spec = small_call();
        spec.gradients = true;
        spec.precision = precision;
        spec.T = spec.N = 64;
        spec.I = spec.H = H;
        const Parameters shape{
            {"matrix_rows", rows}, {"matrix_columns", 1}, {"column_groups", 1}, {"depth_groups", 16}};
        const Plan plan = make_plan(spec, profile, {"persistent", "", shape});
        for (const Step& step : plan.steps)
            if (const Loop* loop = std::get_if<Loop>(&step)) {
                const std::vector<std::uint32_t>& constants = plan.kernels[loop->body.front().kernel].constants;
                return Made{constants.at(abi::kKeptBlocks), constants.at(abi::kSharedBlocks),
                            loop->body.front().launch_shared_memory, constants.at(abi::kStreams) != 0};
            }
        return Made{};
    };
    // A subgroup has 4 * 1024 / 16 / 16 blocks.
    constexpr std::uint32_t kBytesOfASum = 32 * 24 * 4, kBytesOfABlock = 512 * 16;
    const Made streaming = made(2, 1024, Precision::tf32);
    EXPECT_TRUE(streaming.streams);
    EXPECT_EQ(streaming.shared, 0U);
    profile.max_launch_shared_memory = 227 << 10;
    EXPECT_EQ(made(2, 1024, Precision::tf32), (Made{4, 12, 16 * kBytesOfASum + 12 * kBytesOfABlock, false}));
    EXPECT_EQ(made(1, 512, Precision::tf32).shared, 4U);
    EXPECT_EQ(made(1, 512, Precision::ieee).shared, 0U) << "two parts";
}

// Returns the number of hi/lo parts of the left and right operand in the plan's first kernel of that name.
std::pair<std::uint32_t, std::uint32_t> parts_of(const Plan& plan, const std::string& shader) {
    const auto found = std::ranges::find(plan.kernels, shader, &Kernel::shader);
    if (found == plan.kernels.end()) return {};
    return {found->constants.at(abi::kLeftParts), found->constants.at(abi::kRightParts)};
}

TEST(Strategy, RoundsOperandsOnlyWhereTheSpecAllowsIt) {
    Profile profile = with_matrix_units();
    profile.compute_units = 132;
    Spec spec = small_call();
    spec.present |= 1u << static_cast<unsigned>(Argument::input_weight);
    spec.T = spec.N = 64;
    spec.I = spec.H = 512;
    using Pair = std::pair<std::uint32_t, std::uint32_t>;
    const auto plan = [&](std::uint32_t tagged) {
        return make_plan(spec, profile, {"persistent", "matrices", {{"tagged", tagged}}});
    };
    const Plan ieee = plan(0);
    EXPECT_EQ(parts_of(ieee, "lstm_persistent_forward"), Pair(2, 2));
    EXPECT_EQ(parts_of(ieee, "matrix_product"), Pair(2, 2));
    spec = spec_on(spec, profile, true);
    ASSERT_EQ(spec.precision, Precision::tf32);
    const Plan tf32 = plan(0);
    EXPECT_EQ(parts_of(tf32, "lstm_persistent_forward"), Pair(1, 1));
    EXPECT_EQ(parts_of(tf32, "matrix_product"), Pair(1, 1));
    EXPECT_LT(tf32.bytes(), ieee.bytes());
    EXPECT_EQ(parts_of(plan(1), "lstm_persistent_forward"), Pair(1, 1)) << "tags with one part take no further bytes";
    EXPECT_EQ(spec_on(spec, profile, false).precision, Precision::ieee);
    EXPECT_EQ(spec_on(spec, native(), true).precision, Precision::ieee);
    spec.dtype = Dtype::float16;
    EXPECT_EQ(spec_on(spec, profile, true).precision, Precision::ieee);
}

TEST(Strategy, UsesTheDevicesExpWhereOperandsAreRounded) {
    Spec spec = small_call();
    const auto device_exp = [&](Dtype dtype, const Profile& profile, bool tf32) {
        spec.dtype = dtype;
        const Plan plan = make_plan(spec_on(spec, profile, tf32), profile, {"steps", "tiled", {}});
        return std::ranges::any_of(plan.kernels, [](const Kernel& kernel) {
            return kernel.shader.starts_with("lstm_forward") && kernel.constants.at(abi::kDeviceExp) == 1;
        });
    };
    Profile with = with_matrix_units(), without = with_matrix_units();
    without.matrix_side = 0;
    for (const Dtype dtype : {Dtype::float16, Dtype::bfloat16}) {
        EXPECT_TRUE(device_exp(dtype, with, false));
        EXPECT_FALSE(device_exp(dtype, without, false));
    }
    EXPECT_TRUE(device_exp(Dtype::float32, with, true));
    EXPECT_FALSE(device_exp(Dtype::float32, with, false));
    EXPECT_FALSE(device_exp(Dtype::float32, without, true));
}

// Weights fit in the cache of an H200 without their low parts, but not with them.
TEST(Strategy, CountsTheBytesOfRoundedWeights) {
    Profile profile = with_matrix_units();
    profile.compute_units = 132;
    Spec spec = small_call();
    spec.T = spec.N = 64;
    spec.I = spec.H = 2048;
    EXPECT_EQ(make_plan(spec, profile).choice.schedule, "matrices");
    spec.precision = Precision::tf32;
    EXPECT_EQ(make_plan(spec, profile).choice.schedule, "persistent");
}

Plan product_plan(Spec spec, const Profile& profile, const Parameters& parameters = {}) {
    spec.present |= 1u << static_cast<unsigned>(Argument::input_weight);
    return make_plan(spec, profile, {"steps", "matrices", parameters});
}

TEST(Strategy, FitsProductsOnMatrixUnitsIntoSharedMemory) {
    Profile profile = with_matrix_units();
    EXPECT_EQ(product_plan(small_call(), profile).choice.gemm, "matrices");
    profile.max_shared_memory = 8 << 10;
    EXPECT_THROW(product_plan(small_call(), profile), NotImplementedError);
    EXPECT_EQ(product_plan(small_call(), profile, {{"product_column_groups", 2}}).choice.gemm, "matrices");
}

TEST(Strategy, GivesOperandsOfOnePartLargerTiles) {
    const auto rows = [](Dtype dtype, Precision precision, bool gradients) {
        Spec spec = small_call();
        spec.T = spec.N = 64;
        spec.I = spec.H = 512;
        spec.dtype = dtype;
        spec.precision = precision;
        for (const Argument argument : {Argument::source, Argument::recurrent_weight, Argument::input_weight})
            spec.present |= 1u << static_cast<unsigned>(argument);
        spec.gradients = gradients;
        return make_plan(spec, with_matrix_units(), {"", "matrices", {}}).choice.parameters.at("product_rows");
    };
    for (const bool gradients : {false, true}) {
        EXPECT_EQ(rows(Dtype::float32, Precision::ieee, gradients), 2);
        EXPECT_EQ(rows(Dtype::float32, Precision::tf32, gradients), 4);
        EXPECT_EQ(rows(Dtype::bfloat16, Precision::ieee, gradients), 4);
    }
}

std::vector<LibraryProduct> library_products(const Plan& plan) {
    std::vector<LibraryProduct> found;
    for (const Step& step : plan.steps) {
        const auto* dispatch = std::get_if<Dispatch>(&step);
        if (dispatch == nullptr || !is_library_product(plan.kernels[dispatch->kernel])) continue;
        std::memcpy(&found.emplace_back(), dispatch->push.bytes.data(), sizeof(LibraryProduct));
    }
    return found;
}

TEST(Strategy, LeavesProductsToALibraryThatWasFound) {
    Profile profile = with_matrix_units();
    EXPECT_EQ(refusal<ValueError>({"", "cublas", {}}, profile),
              "[Device] gemm: expected 'register' or 'tiled' or 'matrices', got 'cublas'")
        << "on a Vulkan device";
    profile.backend = Backend::cuda;
    check_choice({"", "cublas", {}}, profile);
    Spec spec = small_call();
    spec.T = spec.N = 128;
    spec.I = spec.H = 1024;
    spec.present |= 1u << static_cast<unsigned>(Argument::input_weight);
    const auto gemm = [&](Dtype dtype, Precision precision) {
        spec.dtype = dtype;
        spec.precision = precision;
        return make_plan(spec, profile).choice.gemm;
    };
    EXPECT_EQ(gemm(Dtype::float32, Precision::tf32), "matrices");
    EXPECT_THROW(make_plan(spec, profile, {"", "cublas", {}}), NotImplementedError);
    profile.float64 = profile.product_library = true;
    for (const Dtype dtype : kDtypes)
        EXPECT_EQ(gemm(dtype, Precision::ieee), dtype == Dtype::float32 ? "matrices" : "cublas") << name_of(dtype);
    EXPECT_EQ(gemm(Dtype::float32, Precision::tf32), "cublas");
}

// The library reads vectors of as many bytes as the alignment that it is given for an operand.
TEST(Strategy, TellsTheLibraryHowOperandsAreAligned) {
    Profile profile = with_matrix_units();
    profile.backend = Backend::cuda;
    profile.product_library = true;
    Spec spec = small_call();
    spec.H = 6;
    spec.gradients = true;
    for (const Argument argument : {Argument::recurrent_weight, Argument::input_weight})
        spec.present |= 1u << static_cast<unsigned>(argument);
    // The products of a GRU's directions begin at different offsets. An LSTM's are batches of one product.
    for (const CellKind kind : {CellKind::gru, CellKind::lstm}) {
        spec.descriptor = default_descriptor(kind);
        spec.descriptor.set(Flag::bidirectional, true);
        std::set<std::uint32_t> alignments;
        for (const LibraryProduct& product : library_products(make_plan(spec, profile, {"steps", "cublas", {}})))
            for (const auto& [at, batch, alignment] : {std::tuple(product.a, product.a_batch, product.a_alignment),
                                                       std::tuple(product.b, product.b_batch, product.b_alignment),
                                                       std::tuple(product.c, product.c_batch, product.c_alignment)}) {
                const std::uint64_t stride = product.batches > 1 ? 4 * static_cast<std::uint64_t>(batch) : 0;
                const std::uint64_t places = referenced_offset(at) | stride;
                EXPECT_EQ(places % alignment, 0);
                EXPECT_TRUE(alignment == 16 || places % (2 * alignment) != 0);
                alignments.insert(alignment);
            }
        EXPECT_EQ(alignments, (std::set<std::uint32_t>{8, 16})) << spec.cell().shader;
    }
}

TEST(Strategy, PacksTheDeltasOfBothWeightsOnce) {
    Spec spec = small_call();
    spec.gradients = true;
    spec.T = 64;
    spec.N = spec.I = spec.H = 128;  // so that the products are worth matrix units
    const Plan plan = product_plan(spec, with_matrix_units());
    const auto count = [&](const char* shader) {
        return std::ranges::count_if(plan.steps, [&](const Step& step) {
            const auto* dispatch = std::get_if<Dispatch>(&step);
            return dispatch != nullptr && plan.kernels[dispatch->kernel].shader == shader;
        });
    };
    EXPECT_EQ(count("matrix_product"), 3) << "gradients of the source and of both weights";
    EXPECT_EQ(count("matrix_pack"), 5) << "two products share an operand";
}

// Heads need nothing of each other, so no workgroup waits for another.
TEST(Strategy, GivesHeadsWorkgroupsOfTheirOwn) {
    Spec spec = small_call();
    spec.T = 100;
    spec.H = 768;
    for (const std::int64_t heads : {12, 48, 768}) {
        spec.descriptor.counts[kHeadsSlot] = heads;
        for (const bool gradients : {false, true}) {
            spec.gradients = gradients;
            const Plan plan = make_plan(spec, with_matrix_units(), {});
            EXPECT_EQ(plan.choice.schedule, "slices");
            const auto is_loop = [](const Step& step) { return std::holds_alternative<Loop>(step); };
            const Loop& loop = std::get<Loop>(*std::ranges::find_if(plan.steps, is_loop));
            EXPECT_EQ(loop.body.front().groups[2] * plan.choice.parameters.at("slice_heads"), heads);
        }
    }
}

TEST(Strategy, DoesNotFitEveryCall) {
    const Profile profile = with_matrix_units();
    const auto fits = [&](const Spec& spec) {
        try {
            make_plan(spec, profile, {"matrices", "", {}});
            return true;
        } catch (const NotImplementedError&) {
            return false;
        }
    };
    Spec spec = small_call();
    EXPECT_TRUE(fits(spec));
    spec.descriptor.activations[4] = Activation::relu;
    EXPECT_FALSE(fits(spec)) << "the state has no bound";
    spec.gradients = true;
    EXPECT_TRUE(fits(spec)) << "deltas are scaled by their own absmax";
    spec = small_call();
    spec.descriptor = default_descriptor(CellKind::gru);
    EXPECT_TRUE(fits(spec));
    spec.descriptor.activations[1] = Activation::relu;
    EXPECT_FALSE(fits(spec)) << "the product of the state and the reset gate has no bound";
    spec.descriptor.set(Flag::reset_after, true);
    EXPECT_TRUE(fits(spec));
}

}  // namespace
}  // namespace vkrnn
