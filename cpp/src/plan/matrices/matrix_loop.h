// The time loop with one dispatch for each step, or two for cells with two phases, and with products on matrix units.
#pragma once

#include "plan/gpu/shader_loop.h"

namespace vkrnn {

class MatrixLoop final : public ShaderLoop {
public:
    [[nodiscard]] std::string_view name() const override { return "matrices"; }
    [[nodiscard]] bool runs_on(const Profile& profile) const override;
    [[nodiscard]] Parameters parameters(const Profile& profile, const Parameters& wanted) const override;
    [[nodiscard]] std::vector<Parameters> variants(const Profile& profile) const override;
    [[nodiscard]] std::optional<CostEstimate> estimate(const Spec& spec, const Profile& profile, const Costs& costs,
                                                       const Parameters& wanted) const override;
    [[nodiscard]] DeltaReads delta_reads(const PlanBuilder& /*builder*/) const override { return DeltaReads::none; }
    void run(PlanBuilder& builder, const Inputs& inputs, StepBlock views) const override;
};

}  // namespace vkrnn
