// The time loop as one dispatch for all steps, with products on matrix units. Its workgroups run at the same time and
// wait for each other between steps. They keep the weights, or a part of them, in registers.
#pragma once

#include "plan/gpu/shader_loop.h"

namespace vkrnn {

// A subgroup that keeps only a part of its weights loads the others in every step. If a workgroup gives up waiting, a
// slower dispatch runs the same steps again. It does not need two workgroups to run at the same time.
class PersistentLoop final : public ShaderLoop {
public:
    [[nodiscard]] std::string_view name() const override { return "persistent"; }
    [[nodiscard]] bool runs_on(const Profile& profile) const override;
    [[nodiscard]] Parameters parameters(const Profile& profile, const Parameters& wanted) const override;
    [[nodiscard]] std::vector<Parameters> variants(const Profile& profile) const override;
    [[nodiscard]] std::optional<CostEstimate> estimate(const Spec& spec, const Profile& profile, const Costs& costs,
                                                       const Parameters& wanted) const override;
    [[nodiscard]] DeltaReads delta_reads(const PlanBuilder& /*builder*/) const override { return DeltaReads::none; }
    void run(PlanBuilder& builder, const Inputs& inputs, StepBlock views) const override;
};

}  // namespace vkrnn
