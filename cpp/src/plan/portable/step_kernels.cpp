#include "step_kernels.h"

#include <cstring>

namespace vkrnn {
namespace {

constexpr std::int64_t kUsualMultiprocessors = 32;
constexpr std::int64_t kUsualRegisters = 65536;
constexpr std::uint32_t kAmd = 0x1002;  // AMD's PCI vendor ID
constexpr std::int64_t kMostStepElements = std::int64_t{1} << 28;
constexpr std::uint32_t kReplayGroup = 128;  // invocations of a workgroup; every device supports it

}  // namespace

std::vector<Phase> forward_phases(const Spec& spec) {
    const std::int64_t G = spec.G();
    if (!spec.two_phases()) return {{0, "step", 0, G, 0, G}};
    const std::int64_t candidate = G - 1;
    return {{1, "step: gates", 0, candidate, 0, candidate}, {2, "step: candidate", candidate, 1, candidate, 1}};
}

std::vector<Phase> backward_phases(const Spec& spec) {
    std::vector<Phase> phases = forward_phases(spec);
    phases.front().label = "step back";
    if (phases.size() > 1) phases.back().label = "step back: candidate";
    return phases;
}

std::vector<std::uint32_t> step_constants(const Spec& spec, const StepOptions& options, std::uint32_t all) {
    std::vector<std::uint32_t> constants = cell_constants(spec, options);
    constants.resize(all);
    return constants;
}

std::size_t step_kernel(PlanBuilder& builder, const std::string& driver, std::vector<std::uint32_t> constants) {
    return builder.kernel(std::string(builder.spec().cell().shader) + "_" + driver, std::move(constants));
}

Dispatch step_dispatch(const std::string& label, std::size_t kernel, std::array<std::uint32_t, 3> groups,
                       std::size_t params) {
    const abi::StepPush push{place(params, 0), 0, 0};
    Dispatch made{label, kernel, groups, make_block(push, abi::kStepPushPlaces)};
    made.counter = abi::kStepCounter;
    return made;
}

Dispatch at_step(Dispatch of_loop, const std::string& label, std::int32_t step) {
    of_loop.label = label;
    std::memcpy(of_loop.push.bytes.data() + abi::kStepCounter, &step, sizeof(step));
    return of_loop;
}

void add_recompute(PlanBuilder& builder, const BackwardPass& pass) {
    const Spec& spec = builder.spec();
    std::vector<std::uint32_t> constants = step_constants(spec, {0, weighed_cells(spec)}, abi::kStepConstants);
    constants[abi::kLocalSize] = kReplayGroup;
    const std::size_t kernel = step_kernel(builder, "replay", std::move(constants));
    const std::size_t params = builder.constant("parameters", pass.views.block());
    const abi::StepPush push{place(params, 0), 0, 0};
    builder.dispatch("replay", kernel, builder.groups(spec.T * spec.N * ceil_div(spec.H, kReplayGroup), spec.D()),
                     make_block(push, abi::kStepPushPlaces));
}

bool counts_steps_in_32_bits(const Spec& spec) { return spec.N * spec.D() * spec.G() * spec.H <= kMostStepElements; }

std::int64_t multiprocessors(const Profile& profile) {
    return profile.compute_units != 0 ? profile.compute_units : kUsualMultiprocessors;
}

std::int64_t registers_of(const Profile& profile) {
    return profile.registers != 0 ? profile.registers : kUsualRegisters;
}

bool is_amd(const Profile& profile) { return profile.vendor_id == kAmd; }

double on_gpu(const Profile& profile, double microseconds) {
    return profile.type == DeviceType::cpu ? kOnlyWhenAsked : microseconds;
}

}  // namespace vkrnn
