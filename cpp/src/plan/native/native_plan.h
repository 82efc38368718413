// The strategies of the CPU, with kernels for the whole time loop and for the products around it. cpu_work.h has the
// kernels' parameters.
#pragma once

#include "plan/strategy.h"

namespace vkrnn {

class NativeProducts final : public ProductStrategy {
public:
    [[nodiscard]] std::string_view name() const override { return "native"; }
    [[nodiscard]] std::optional<CostEstimate> estimate(const Spec& spec, const Profile& profile, const Costs& costs,
                                                       const Parameters& wanted) const override;
    [[nodiscard]] bool takes_sets() const override { return true; }
    void product(PlanBuilder& builder, const std::string& label, const Product& product,
                 bool independent) const override;
    void row_sum(PlanBuilder& builder, const std::string& label, const RowSum& sum, bool independent) const override;
    void convert(PlanBuilder& builder, const std::string& label, const Conversion& conversion,
                 bool independent) const override;
    void last_rows(PlanBuilder& builder, const std::string& label, const LastRows& rows,
                   bool independent) const override;
    void combine(PlanBuilder& builder, const std::string& label, const Combination& combination,
                 bool independent) const override;
    void copy_rows(PlanBuilder& builder, const std::string& label, const RowCopy& copy,
                   bool independent) const override;
};

// One dispatch runs all time steps. The forward loop also computes x W^T.
class NativeLoop final : public LoopStrategy {
public:
    [[nodiscard]] std::string_view name() const override { return "native"; }
    [[nodiscard]] std::optional<CostEstimate> estimate(const Spec& spec, const Profile& profile, const Costs& costs,
                                                       const Parameters& wanted) const override;
    [[nodiscard]] bool projects() const override { return true; }
    [[nodiscard]] bool skips_ended() const override { return true; }
    void recompute(PlanBuilder& builder, const Inputs& inputs, const StepBlock& views) const override;
    void run(PlanBuilder& builder, const Inputs& inputs, StepBlock views) const override;
    void reset_gradients(PlanBuilder& builder, const StepBlock& views, std::uint32_t wanted) const override;
};

}  // namespace vkrnn
