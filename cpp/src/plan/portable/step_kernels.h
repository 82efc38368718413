// Shared by the Vulkan strategies for the time loop: the phases of a step, their kernels and dispatches, and properties
// of a device.
#pragma once

#include <span>

#include "plan/strategy.h"

namespace vkrnn {

// One phase of a step, which has one or two, and the gates of its product.
struct Phase {
    std::uint32_t number;            // value of the constant kPhase
    std::string label;               // label of its dispatches
    std::int64_t first_gate, gates;  // forward: gates, in canonical order, whose products it computes
    std::int64_t first_slot, slots;  // backward: slots whose deltas it multiplies
};
std::vector<Phase> forward_phases(const Spec& spec);
std::vector<Phase> backward_phases(const Spec& spec);

// Returns `all` specialization constants of a step kernel: those that follow from the call, then zeros for the strategy
// to set.
std::vector<std::uint32_t> step_constants(const Spec& spec, const StepOptions& options, std::uint32_t all);

std::size_t step_kernel(PlanBuilder& builder, const std::string& driver, std::vector<std::uint32_t> constants);

// Returns the dispatch of a step in a loop, or of one of its phases. Its counter is the number of the step.
Dispatch step_dispatch(const std::string& label, std::size_t kernel, std::array<std::uint32_t, 3> groups,
                       std::size_t params);

// Returns a dispatch of a loop for a single step outside of the loop.
Dispatch at_step(Dispatch of_loop, const std::string& label, std::int32_t step);

// Adds the dispatch that recomputes the operands of all steps at once; see LoopStrategy::recompute().
void add_recompute(PlanBuilder& builder, const BackwardPass& pass);

// Returns whether the bytes from one step to the next fit in 32 bits in every tensor of a call.
bool counts_steps_in_32_bits(const Spec& spec);

// Returns the number of a device's multiprocessors, or a typical number if it is unknown.
std::int64_t multiprocessors(const Profile& profile);

// Returns whether the device is an AMD GPU, with any driver.
bool is_amd(const Profile& profile);

// Returns the registers of a multiprocessor, or a typical number if it is unknown.
std::int64_t registers_of(const Profile& profile);

constexpr std::int64_t kMostRegisters = 255;  // of an invocation on NVIDIA GPUs

// The cost estimate of a strategy that is used only if a caller fixes it.
constexpr double kOnlyWhenAsked = 1e30;

// Returns the cost estimate of a strategy whose costs were fitted to GPUs. On Vulkan on the CPU, such a strategy is
// used only if a caller fixes it.
double on_gpu(const Profile& profile, double microseconds);

}  // namespace vkrnn
