// Tests how many registers the kernels of plans need on AMD GPUs. Mesa's driver RADV compiles for any GPU family that
// the environment names, even without such a GPU, and reports the registers of a kernel. It cannot run them.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <sstream>

#include "scale.h"
#include "variables.h"
#include "vk/device/physical_device.h"
#include "vk/pipelines/compile.h"
#include "vkrnn/error.h"

namespace vkrnn::vk {
namespace {

// RADV's names of families. Compilation for named families includes optional strategies and takes minutes.
const char* wanted_families() { return std::getenv("VKRNN_AMD_FAMILIES"); }

std::vector<std::string> families() {
    std::istringstream names(wanted_families() != nullptr ? wanted_families() : "gfx1100");
    return {std::istream_iterator<std::string>(names), {}};
}

struct Size {
    std::int64_t T, N, H;
};
// Sizes of calls: one of docs/performance.md. In full runs, also a size below one vector and two that use different
// kernels. If families are named, also the smallest size and the others of docs/performance.md.
constexpr Size kSizes[] = {{256, 64, 512}, {5, 3, 7},     {512, 1, 64},    {128, 32, 128}, {1, 1, 1},
                           {1000, 8, 256}, {200, 1, 512}, {100, 64, 1024}, {64, 64, 2048}};

std::span<const Size> sizes() {
    const std::span all(kSizes);
    if (wanted_families() != nullptr) return all;
    return all.first(test::full() ? 4 : 1);
}

// float64 kernels differ from float32's only in the type, and those of the two 16-bit types only in conversions.
std::span<const Dtype> dtypes() {
    static constexpr Dtype few[] = {Dtype::float32, Dtype::float16};
    if (wanted_families() != nullptr || test::full()) return kDtypes;
    return few;
}

std::uint32_t bit(Argument argument) { return 1U << static_cast<unsigned>(argument); }

// Calls of a cell: inference, training and gradients, each with as few arguments as possible and with all arguments and
// options.
std::vector<Spec> specs_of(const Cell& cell) {
    std::vector<Spec> specs;
    for (const Size& size : sizes())
        for (const Dtype dtype : dtypes())
            for (const bool everything : {false, true})
                for (const bool reset_after : {false, true}) {
                    if (reset_after && !cell.candidate) continue;
                    Spec spec;
                    spec.descriptor = default_descriptor(cell.kind);
                    spec.descriptor.set(Flag::bidirectional, everything);
                    spec.descriptor.set(Flag::other_gate_order, everything);
                    spec.descriptor.set(Flag::reset_after, reset_after);
                    spec.dtype = dtype;
                    spec.T = size.T;
                    spec.N = size.N;
                    spec.I = spec.H = size.H;
                    spec.present = bit(Argument::input_weight) | bit(Argument::recurrent_weight);
                    for (const bool gradients : {false, true}) {
                        spec.gradients = gradients;
                        for (const Parameter& parameter : gradients ? cell.gradients : cell.forward)
                            if (everything || !parameter.optional) spec.present |= bit(parameter.argument);
                        specs.push_back(spec);
                    }
                    spec = specs[specs.size() - 2];
                    spec.descriptor.set(Flag::training, true);
                    spec.descriptor.set(Flag::produce_cell, cell.cell_states > 0);
                    specs.push_back(spec);
                }
    return specs;
}

// The kernels of all these calls on a device, with these strategies fixed.
void collect(const Profile& profile, const StrategyChoice& fixed, std::set<Kernel>& kernels) {
    for (const Cell& cell : cells())
        for (const Spec& spec : specs_of(cell)) {
            if (spec.dtype == Dtype::float64 && !profile.float64) continue;
            try {
                const Plan plan = make_plan(spec, profile, fixed);
                kernels.insert(plan.kernels.begin(), plan.kernels.end());
            } catch (const NotImplementedError&) {
                ASSERT_NE(fixed, StrategyChoice{}) << "a device runs every call";
            }
        }
}

struct Registers {
    std::uint64_t vector = 0, spilled = 0, scratch = 0, subgroups = 0;  // scratch: bytes; subgroups: of a SIMD unit
};

// A device that compiles for a family. It is opened without timeline semaphores, which null hardware refuses.
class Compiler {
public:
    // Returns RADV's device of the family, if RADV is installed and knows the family.
    explicit Compiler(const std::string& family) {
        test::set_variable("RADV_FORCE_FAMILY", family);
        const ApplicationInfo application{.apiVersion = VK_API_VERSION_1_3};
        instance_ = raii::Instance(loader_, InstanceCreateInfo{.pApplicationInfo = &application});
        for (const raii::PhysicalDevice& physical : instance_.enumeratePhysicalDevices()) {
            if (unusable(physical)) continue;
            profile_ = read_profile(physical);
            if (profile_.driver != "radv") continue;
            open(physical);
            return;
        }
    }

    [[nodiscard]] bool is_open() const { return *device_ != ::vk::Device{}; }
    [[nodiscard]] const Profile& profile() const { return profile_; }

    [[nodiscard]] Registers compile(const Kernel& kernel) const {
        const raii::Pipeline pipeline = compile_kernel(device_, kernel, *layout_.pipeline, nullptr, subgroup_size_,
                                                       PipelineCreateFlagBits::eCaptureStatisticsKHR);
        const PipelineExecutableInfoKHR info{.pipeline = *pipeline};
        std::map<std::string, std::uint64_t> found;
        for (const auto& statistic : device_.getPipelineExecutableStatisticsKHR(info))
            found.emplace(statistic.name.data(), statistic.value.u64);
        return {found.at("VGPRs"), found.at("Spilled VGPRs"), found.at("Scratch size"), found.at("Subgroups per SIMD")};
    }

private:
    void open(const raii::PhysicalDevice& physical) {
        const auto there = physical.getFeatures2<PhysicalDeviceFeatures2, PhysicalDeviceVulkan11Features,
                                                 PhysicalDeviceVulkan12Features>();
        const PhysicalDeviceFeatures& core = there.get<PhysicalDeviceFeatures2>().features;
        const auto& there11 = there.get<PhysicalDeviceVulkan11Features>();
        const auto& there12 = there.get<PhysicalDeviceVulkan12Features>();
        PhysicalDevicePipelineExecutablePropertiesFeaturesKHR statistics{.pipelineExecutableInfo = true};
        PhysicalDeviceVulkan13Features features13{
            .pNext = &statistics, .subgroupSizeControl = true, .computeFullSubgroups = true};
        PhysicalDeviceVulkan12Features features12{.pNext = &features13,
                                                  .shaderFloat16 = there12.shaderFloat16,
                                                  .scalarBlockLayout = there12.scalarBlockLayout,
                                                  .uniformBufferStandardLayout = true,
                                                  .bufferDeviceAddress = true,
                                                  .vulkanMemoryModel = there12.vulkanMemoryModel,
                                                  .vulkanMemoryModelDeviceScope = there12.vulkanMemoryModelDeviceScope};
        PhysicalDeviceVulkan11Features features11{.pNext = &features12,
                                                  .storageBuffer16BitAccess = there11.storageBuffer16BitAccess};
        const PhysicalDeviceFeatures2 features{
            .pNext = &features11,
            .features = {.shaderFloat64 = core.shaderFloat64, .shaderInt64 = true, .shaderInt16 = core.shaderInt16}};
        const float priority = 1;
        const DeviceQueueCreateInfo queue{
            .queueFamilyIndex = compute_family(physical).value(), .queueCount = 1, .pQueuePriorities = &priority};
        constexpr std::array extensions{VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME,
                                        VK_KHR_PUSH_DESCRIPTOR_EXTENSION_NAME};
        device_ = raii::Device(physical, DeviceCreateInfo{.pNext = &features,
                                                          .queueCreateInfoCount = 1,
                                                          .pQueueCreateInfos = &queue,
                                                          .enabledExtensionCount = extensions.size(),
                                                          .ppEnabledExtensionNames = extensions.data()});
        layout_ = make_layout(device_);
        if (can_fix_subgroup_size(physical, profile_.subgroup_size)) subgroup_size_ = profile_.subgroup_size;
    }

    raii::Context loader_;
    raii::Instance instance_ = nullptr;
    Profile profile_;
    raii::Device device_ = nullptr;
    KernelLayout layout_;
    std::uint32_t subgroup_size_ = 0;
};

// The figures of all kernels of one shader: the largest, and the smallest number of subgroups.
struct Figures {
    std::size_t kernels = 0;
    Registers worst{.subgroups = ~std::uint64_t{0}};

    void add(const Registers& each) {
        ++kernels;
        worst.vector = std::max(worst.vector, each.vector);
        worst.spilled = std::max(worst.spilled, each.spilled);
        worst.scratch = std::max(worst.scratch, each.scratch);
        worst.subgroups = std::min(worst.subgroups, each.subgroups);
    }
};

std::string text_of(const Kernel& kernel) {
    std::string text = kernel.shader + "<";
    for (const std::uint32_t constant : kernel.constants) text += std::to_string(constant) + ",";
    text.back() = '>';
    return text;
}

// Prints the table of docs/performance.md.
void print(const std::string& title, const std::map<std::string, Figures>& figures) {
    std::printf("%s\n  %-34s %7s %5s %7s %7s %9s\n", title.c_str(), "shader", "kernels", "VGPRs", "spilled", "scratch",
                "subgroups");
    for (const auto& [shader, each] : figures)
        std::printf(
            "  %-34s %7zu %5llu %7llu %7llu %9llu\n", shader.c_str(), each.kernels,
            static_cast<unsigned long long>(each.worst.vector), static_cast<unsigned long long>(each.worst.spilled),
            static_cast<unsigned long long>(each.worst.scratch), static_cast<unsigned long long>(each.worst.subgroups));
}

class AmdCompiler : public testing::TestWithParam<std::string> {};

TEST_P(AmdCompiler, KeepsKernelsInRegisters) {
    // Instances are never destroyed, because that unloads drivers, and a leak checker cannot then attribute their
    // leaks.
    static auto* const compilers = new std::vector<std::unique_ptr<const Compiler>>;
    const Compiler* compiler = nullptr;
    try {
        compilers->push_back(std::make_unique<const Compiler>(GetParam()));
        compiler = compilers->back().get();
    } catch (const std::exception& error) {  // no loader, or no driver
        std::printf("%s\n", error.what());
    }
    if (compiler == nullptr || !compiler->is_open()) {
        const char* const required = std::getenv("VKRNN_REQUIRE_ORACLES");
        const std::string reason = "Mesa's RADV, which compiles for it, is not installed (Debian: mesa-vulkan-drivers)";
        ASSERT_TRUE(required == nullptr || std::string_view(required) != "1") << reason;
        GTEST_SKIP() << reason;
    }
    const Profile& profile = compiler->profile();
    std::set<Kernel> chosen, others;
    collect(profile, {}, chosen);
    std::map<std::string, Figures> figures;
    for (const Kernel& kernel : chosen) {
        const Registers registers = compiler->compile(kernel);
        figures[kernel.shader].add(registers);
        EXPECT_EQ(registers.spilled, 0U) << text_of(kernel);
        EXPECT_EQ(registers.scratch, 0U) << text_of(kernel);
    }
    print(profile.name + ", " + profile.driver_version + ": kernels that it chooses by itself", figures);
    if (wanted_families() == nullptr) return;

    figures.clear();
    const StrategyNames names = list_strategies(profile);
    for (const std::string& schedule : names.schedule) collect(profile, {schedule, "", {}}, others);
    for (const std::string& gemm : names.gemm) collect(profile, {"", gemm, {}}, others);
    for (const Kernel& kernel : others)
        if (!chosen.contains(kernel)) figures[kernel.shader].add(compiler->compile(kernel));
    print("kernels that only a caller chooses", figures);
}

INSTANTIATE_TEST_SUITE_P(Family, AmdCompiler, testing::ValuesIn(families()),
                         [](const auto& family) { return family.param; });

}  // namespace
}  // namespace vkrnn::vk
