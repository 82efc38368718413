// The time loop with one dispatch for each step, or two for cells with two phases. Runs on any Vulkan device.
#pragma once

#include "plan/gpu/shader_loop.h"

namespace vkrnn {

class StepLoop final : public ShaderLoop {
public:
    [[nodiscard]] std::string_view name() const override { return "steps"; }
    [[nodiscard]] Parameters parameters(const Profile& profile, const Parameters& wanted) const override;
    [[nodiscard]] std::vector<Parameters> variants(const Profile& profile) const override;
    [[nodiscard]] std::optional<CostEstimate> estimate(const Spec& spec, const Profile& profile, const Costs& costs,
                                                       const Parameters& wanted) const override;
    void recompute(PlanBuilder& builder, const Inputs& inputs, const StepBlock& views) const override;
    void run(PlanBuilder& builder, const Inputs& inputs, StepBlock views) const override;
};

}  // namespace vkrnn
