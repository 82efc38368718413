// The time loop as one dispatch, in which each workgroup makes all steps of some batch rows: no batch row depends on
// another, so no step waits for a workgroup that works on other rows. For GPUs, and states so small that the weights
// fit in one multiprocessor's registers and shared memory, or nearly so.
#pragma once

#include "plan/strategy.h"

namespace vkrnn {

class SliceLoop : public LoopStrategy {
public:
    [[nodiscard]] std::string_view name() const override { return "slices"; }
    [[nodiscard]] bool runs_on(const Profile& profile) const override;
    [[nodiscard]] Sizes sizes(const Profile& profile, const Sizes& wanted) const override;
    [[nodiscard]] std::optional<Offer> offer(const Spec& spec, const Profile& profile,
                                             const Sizes& wanted) const override;
    void forward(PlanBuilder& builder, const Inputs& inputs, StepBlock views) const override;
    void recompute(PlanBuilder& builder, const BackwardPass& pass) const override;
    void backward(PlanBuilder& builder, const BackwardPass& pass) const override;
};

}  // namespace vkrnn
