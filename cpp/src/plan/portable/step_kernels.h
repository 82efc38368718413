// Parts that strategies share whose time loop is one or two dispatches for each step.
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

// Returns `all` specialization constants of a step kernel: those that the call decides, then zeros for the strategy to
// set.
std::vector<std::uint32_t> step_constants(const Spec& spec, const StepOptions& options, std::uint32_t all);

std::size_t step_kernel(PlanBuilder& builder, const std::string& driver, std::vector<std::uint32_t> constants);

// Returns the dispatch of a loop's step, or of one phase of it; its counter is the number of the step.
Dispatch step_dispatch(const std::string& label, std::size_t kernel, std::array<std::uint32_t, 3> groups,
                       std::size_t params);

// Returns one step of a loop by itself.
Dispatch at_step(Dispatch of_loop, const std::string& label, std::int32_t step);

// Adds the dispatch that recomputes every step's operand at once; see LoopStrategy::recompute.
void add_recompute(PlanBuilder& builder, const BackwardPass& pass);

// Returns whether 32 bits count the bytes from a step to the next in every tensor of a call.
bool counts_steps_in_32_bits(const Spec& spec);

// Returns the number of a device's multiprocessors, or a usual one where it does not tell.
std::int64_t multiprocessors(const Profile& profile);

// Returns whether it is one of AMD's GPUs, whatever its driver.
bool is_amd(const Profile& profile);

// Returns the registers of a multiprocessor, or a usual number where the device does not tell.
std::int64_t registers_of(const Profile& profile);

constexpr std::int64_t kMostRegisters = 255;  // of an invocation on NVIDIA's GPUs

// The time in the offer of a strategy that is only taken if a caller fixes it.
constexpr double kOnlyWhenAsked = 1e30;

// The offer of a strategy whose costs are those of GPUs: on Vulkan on the CPU it is taken only where a caller fixes it.
double on_gpu(const Profile& profile, double microseconds);

}  // namespace vkrnn
