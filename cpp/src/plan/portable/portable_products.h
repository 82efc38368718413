// Products with shaders that any GPU can run.
#pragma once

#include "plan/gpu/product_costs.h"
#include "plan/gpu/shader_products.h"

namespace vkrnn {

// Computes C tile by tile.
class PortableProducts : public ShaderProducts {
public:
    void product(PlanBuilder& builder, const std::string& label, const Product& product,
                 bool independent) const override;

    [[nodiscard]] std::optional<CostEstimate> estimate(const Spec& spec, const Profile& profile, const Costs& costs,
                                                       const Parameters& wanted) const override;

protected:
    // How a kernel computes a product: workgroups share C in tiles, and may cut each tile along k into slabs.
    struct Tiling {
        std::string shader;
        std::int64_t tiles, slabs;
    };
    // Chooses it, and sets the constants that belong to it.
    [[nodiscard]] virtual Tiling tiling(const PlanBuilder& builder, const Product& product, bool allow_slabs,
                                        Constants& constants) const = 0;
    [[nodiscard]] virtual double flops_per_us(const ProductCosts& costs) const = 0;
};

// Each invocation computes a tile in its registers. A workgroup is one subgroup and needs no shared memory.
class RegisterProducts final : public PortableProducts {
public:
    [[nodiscard]] std::string_view name() const override { return "register"; }

protected:
    [[nodiscard]] Tiling tiling(const PlanBuilder& builder, const Product& product, bool allow_slabs,
                                Constants& constants) const override;
    [[nodiscard]] double flops_per_us(const ProductCosts& costs) const override { return costs.register_flops_per_us; }
};

// A workgroup computes a tile from operands in shared memory.
class TiledProducts final : public PortableProducts {
public:
    [[nodiscard]] std::string_view name() const override { return "tiled"; }
    [[nodiscard]] bool runs_on(const Profile& profile) const override;

protected:
    [[nodiscard]] Tiling tiling(const PlanBuilder& builder, const Product& product, bool allow_slabs,
                                Constants& constants) const override;
    [[nodiscard]] double flops_per_us(const ProductCosts& costs) const override { return costs.tiled_flops_per_us; }
};

}  // namespace vkrnn
