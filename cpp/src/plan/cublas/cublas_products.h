// Products by cuBLASLt, NVIDIA's library. Sums and conversions use the tiled strategy.
#pragma once

#include "plan/gpu/shader_products.h"
#include "plan/portable/portable_products.h"

namespace vkrnn {

class CublasProducts final : public ShaderProducts {
public:
    [[nodiscard]] std::string_view name() const override { return "cublas"; }
    [[nodiscard]] bool runs_on(const Profile& profile) const override { return tiled_.runs_on(profile); }
    [[nodiscard]] std::optional<CostEstimate> estimate(const Spec& spec, const Profile& profile, const Costs& costs,
                                                       const Parameters& wanted) const override;
    // The library multiplies numbers of one type.
    [[nodiscard]] bool narrows_operands(Dtype /*dtype*/) const override { return true; }
    [[nodiscard]] bool runs_beside(const Spec& spec) const override;
    void product(PlanBuilder& builder, const std::string& label, const Product& product,
                 bool independent) const override;

private:
    [[nodiscard]] Matrix operand(PlanBuilder& builder, const Matrix& matrix, std::int64_t part_rows) const;

    TiledProducts tiled_;
};

}  // namespace vkrnn
