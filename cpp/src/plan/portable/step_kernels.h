// What the strategies share whose time loop is a dispatch or two for each step.
#pragma once

#include <span>

#include "plan/strategy.h"

namespace vkrnn {

// One of the one or two phases of a step, and the gates that its product is about.
struct Phase {
    std::uint32_t number;            // as constant kPhase
    std::string label;               // of its dispatches
    std::int64_t first_gate, gates;  // forward: gates, in canonical order, whose products it forms
    std::int64_t first_slot, slots;  // backward: slots whose deltas it multiplies
};
std::vector<Phase> forward_phases(const Spec& spec);
std::vector<Phase> backward_phases(const Spec& spec);

// Specialization constants of a step kernel: those that the call decides, and as many more as `all`, zeros.
std::vector<std::uint32_t> step_constants(const Spec& spec, const StepOptions& options, std::uint32_t all);

std::size_t step_kernel(PlanBuilder& builder, const std::string& driver, std::vector<std::uint32_t> constants);

// The step of a loop, or one phase of it; its counter is the number of the step.
Dispatch step_dispatch(const std::string& label, std::size_t kernel, std::array<std::uint32_t, 3> groups,
                       std::size_t params);

// One step of a loop by itself.
Dispatch at_step(Dispatch of_loop, const std::string& label, std::int32_t step);

// Recomputes for all steps at once what each step's product multiplied: LoopStrategy::recompute.
void add_recompute(PlanBuilder& builder, const BackwardPass& pass);

// The value that the caller fixed for a size, else `otherwise`.
std::uint32_t size_or(const Sizes& wanted, std::string_view name, std::uint32_t otherwise);

// Throws ValueError: a size's value is not what a device can run.
void require_size(bool holds, std::string_view name, const std::string& expected, std::uint32_t got);

// How many multiprocessors a device has, or a usual number where it does not tell.
std::int64_t multiprocessors(const Profile& profile);

// Registers of one of NVIDIA's multiprocessors, and the most that an invocation has.
constexpr std::int64_t kRegisters = 65536;
constexpr std::int64_t kMostRegisters = 255;

// What an offer says of a strategy that is taken only where a caller fixes it.
constexpr double kOnlyWhenAsked = 1e30;

// The offer of a strategy whose costs are those of GPUs: on Vulkan on the CPU it is taken only where a caller fixes it.
double on_gpu(const Profile& profile, double microseconds);

}  // namespace vkrnn
