// The base of all time loops that run as shaders, and what they share: the phases of a step, dispatches and loops.
#pragma once

#include <functional>
#include <span>

#include "plan/strategy.h"
#include "plan/tuning_parameters.h"

namespace vkrnn {

// A derived class adds the loop itself in run().
class ShaderLoop : public LoopStrategy {
public:
    void recompute(PlanBuilder& builder, const Inputs& inputs, const StepBlock& views) const override;
    void reset_gradients(PlanBuilder& builder, const StepBlock& views, std::uint32_t wanted) const override;
};

constexpr std::int64_t kMostParts = 65535;  // of all directions: a dispatch's workgroups along z

// Returns how many parts a call has if each head is one: see abi::kHasParts.
std::int64_t head_parts(const Spec& spec);
// Returns whether they are at most kMostParts.
bool can_have_parts(const Spec& spec);

// One phase of a step, which has one or two. Forward, it computes the products of `count` gates in canonical order.
// Backward, it multiplies the deltas of `count` slots.
struct Phase {
    std::uint32_t number;       // value of the constant kPhase
    std::string label;          // label of its dispatches
    std::int64_t first, count;  // gates or slots
};

// Returns the phases of a call's steps, forward or backward.
std::vector<Phase> phases_of(const Spec& spec);

// Returns the push constants of a step kernel. `steps`: the most steps that the dispatch makes, if it makes several.
Block step_push(PlanBuilder& builder, const StepBlock& views, std::uint32_t steps = 0);

// Returns a dispatch for a loop's body. Its counter is the number of the step.
Dispatch step_dispatch(PlanBuilder& builder, const std::string& label, std::size_t kernel,
                       std::array<std::uint32_t, 3> groups, const StepBlock& views, std::uint32_t steps = 0);

// Returns a dispatch of a loop's body as the one for a single step.
Dispatch at_step(Dispatch dispatch, std::int32_t step, std::string label);

// Returns the loop over a call's steps, in the order of execution, without a body. Each turn makes `steps` steps.
Loop loop_over(const Spec& spec, std::int64_t steps = 1);

// Returns how many steps a dispatch makes that can make `most`. In a wavefront, they divide those of a piece.
std::int64_t steps_in_dispatch(const Spec& spec, std::int64_t most);

// Adds the loop over the steps with one dispatch per phase, then the gradient of the initial state if it is wanted.
void add_loop_of_phases(PlanBuilder& builder, const std::function<Dispatch(const Phase&)>& dispatch_of);

// Returns whether one dispatch can make several steps. It cannot compute two phases or in float64, and the bytes from
// one step to the next must fit in 32 bits in every tensor.
bool can_run_many_steps(const Spec& spec);

// Returns the cost estimate of the cheapest shape that fits, with the wanted parameters in place of its own.
// `fits(shape, usual)` gets the shape before that, too. `step_cost(shape)` estimates the microseconds of a step.
template <class Shape, class Fits, class StepCost>
std::optional<CostEstimate> cheapest(const Spec& spec, std::span<const Shape> shapes, const Parameters& wanted,
                                     const Fits& fits, const StepCost& step_cost) {
    std::optional<CostEstimate> best;
    for (const Shape& usual : shapes) {
        const Shape shape = with_parameters(usual, wanted);
        if (!fits(shape, usual)) continue;
        const double microseconds = static_cast<double>(spec.T) * step_cost(shape);
        if (!best || microseconds < best->microseconds) best = CostEstimate{microseconds, parameters_of(shape)};
    }
    return best;
}

}  // namespace vkrnn
