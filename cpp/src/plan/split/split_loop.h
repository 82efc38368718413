// The time loop that splits each step, or each phase of one, into a matrix product and a dispatch for the cells. For
// large products: the product is one of the strategy `cublas` if the device has that library, otherwise of `tiled`.
#pragma once

#include "plan/cublas/cublas_products.h"
#include "plan/gpu/shader_loop.h"

namespace vkrnn {

class SplitLoop final : public ShaderLoop {
public:
    [[nodiscard]] std::string_view name() const override { return "split"; }
    [[nodiscard]] bool runs_on(const Profile& profile) const override { return tiled_.runs_on(profile); }
    [[nodiscard]] std::optional<CostEstimate> estimate(const Spec& spec, const Profile& profile, const Costs& costs,
                                                       const Parameters& wanted) const override;
    [[nodiscard]] DeltaReads delta_reads(const PlanBuilder& /*builder*/) const override { return DeltaReads::none; }
    void run(PlanBuilder& builder, const Inputs& inputs, StepBlock views) const override;

private:
    [[nodiscard]] const ProductStrategy& products(const Profile& profile) const;

    TiledProducts tiled_;
    CublasProducts cublas_;
};

}  // namespace vkrnn
