// Products on matrix units. Small products, sums and conversions use the tiled strategy.
#pragma once

#include "plan/gpu/shader_products.h"
#include "plan/portable/portable_products.h"

namespace vkrnn {

class MatrixProducts final : public ShaderProducts {
public:
    [[nodiscard]] std::string_view name() const override { return "matrices"; }
    [[nodiscard]] bool runs_on(const Profile& profile) const override;
    [[nodiscard]] Parameters parameters(const Profile& profile, const Parameters& wanted) const override;
    [[nodiscard]] std::optional<CostEstimate> estimate(const Spec& spec, const Profile& profile, const Costs& costs,
                                                       const Parameters& wanted) const override;
    // Not in float16, whose range is too small for deltas. Packing scales float32 deltas by their absmax.
    [[nodiscard]] bool narrows_operands(Dtype dtype) const override { return dtype == Dtype::bfloat16; }
    void product(PlanBuilder& builder, const std::string& label, const Product& product,
                 bool independent) const override;

private:
    TiledProducts tiled_;
};

}  // namespace vkrnn
