// The time loop as one dispatch, in which each workgroup runs all steps of some batch rows. Batch rows are independent
// of each other, so no workgroup waits for another. For GPUs and small states, whose weights fit, or nearly so, in the
// registers and shared memory of one multiprocessor.
#pragma once

#include "plan/gpu/shader_loop.h"

namespace vkrnn {

class SliceLoop final : public ShaderLoop {
public:
    [[nodiscard]] std::string_view name() const override { return "slices"; }
    [[nodiscard]] bool runs_on(const Profile& profile) const override;
    [[nodiscard]] Parameters parameters(const Profile& profile, const Parameters& wanted) const override;
    [[nodiscard]] std::optional<CostEstimate> estimate(const Spec& spec, const Profile& profile, const Costs& costs,
                                                       const Parameters& wanted) const override;
    [[nodiscard]] DeltaReads delta_reads(const PlanBuilder& builder) const override;
    void run(PlanBuilder& builder, const Inputs& inputs, StepBlock views) const override;
};

}  // namespace vkrnn
