// The time loop with one dispatch for each step, or two for cells with two phases, and with products on matrix units.
#pragma once

#include "plan/strategy.h"

namespace vkrnn {

class MatrixLoop : public LoopStrategy {
public:
    [[nodiscard]] std::string_view name() const override { return "matrices"; }
    [[nodiscard]] bool runs_on(const Profile& profile) const override;
    [[nodiscard]] Sizes sizes(const Profile& profile, const Sizes& wanted) const override;
    [[nodiscard]] std::vector<Sizes> variants(const Profile& profile) const override;
    [[nodiscard]] std::optional<Offer> offer(const Spec& spec, const Profile& profile,
                                             const Sizes& wanted) const override;
    void forward(PlanBuilder& builder, const Inputs& inputs, StepBlock views) const override;
    void recompute(PlanBuilder& builder, const BackwardPass& pass) const override;
    void backward(PlanBuilder& builder, const BackwardPass& pass) const override;
};

}  // namespace vkrnn
