// The time loop with one dispatch for each step, or two for cells with two phases. A dispatch computes its product as
// tiles in shared memory and registers, with plain multiply-adds. Runs on any GPU.
#pragma once

#include "plan/gpu/shader_loop.h"

namespace vkrnn {

class TileLoop final : public ShaderLoop {
public:
    [[nodiscard]] std::string_view name() const override { return "tiles"; }
    [[nodiscard]] bool runs_on(const Profile& profile) const override;
    [[nodiscard]] Parameters parameters(const Profile& profile, const Parameters& wanted) const override;
    [[nodiscard]] std::vector<Parameters> variants(const Profile& profile) const override;
    [[nodiscard]] std::optional<CostEstimate> estimate(const Spec& spec, const Profile& profile, const Costs& costs,
                                                       const Parameters& wanted) const override;
    [[nodiscard]] DeltaReads delta_reads(const PlanBuilder& /*builder*/) const override { return DeltaReads::none; }
    void run(PlanBuilder& builder, const Inputs& inputs, StepBlock views) const override;
};

}  // namespace vkrnn
