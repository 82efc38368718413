// Products, sums and conversions with shaders that any GPU can run.
#pragma once

#include "plan/strategy.h"

namespace vkrnn {

// Returns the floating-point operations of the products around the time loop.
double product_flops(const Spec& spec);

// Adds a step that adds up `parts` contiguous parts of `columns` elements each.
void add_parts(PlanBuilder& builder, const std::string& label, std::size_t from, std::int64_t parts,
               std::int64_t columns, std::size_t out, std::int64_t out_offset);

// Computes C tile by tile. The kernel determines the tile.
class PortableProducts : public ProductStrategy {
public:
    void product(PlanBuilder& builder, const std::string& label, const Product& product,
                 bool independent) const override;
    void row_sum(PlanBuilder& builder, const std::string& label, const RowSum& sum, bool independent) const override;
    void convert(PlanBuilder& builder, const std::string& label, const Conversion& conversion,
                 bool independent) const override;

    [[nodiscard]] std::optional<CostEstimate> estimate(const Spec& spec, const Profile& profile, const Costs& costs,
                                                       const Parameters& wanted) const override;

protected:
    struct Tiles {
        std::string shader;
        std::int64_t m, n;        // the tile of C that one workgroup computes
        bool splits;              // whether workgroups may split a tile along k if there are few tiles
        std::uint32_t lanes = 0;  // the constant kGemmLanes, if the shader has it
    };
    [[nodiscard]] virtual Tiles tiles(const Profile& profile) const = 0;
    [[nodiscard]] virtual double flops_per_us(const Costs::Products& costs) const = 0;
};

// Each invocation computes a tile in its registers. A workgroup is one subgroup and needs no shared memory.
class RegisterProducts final : public PortableProducts {
public:
    [[nodiscard]] std::string_view name() const override { return "register"; }

protected:
    [[nodiscard]] Tiles tiles(const Profile& profile) const override;
    [[nodiscard]] double flops_per_us(const Costs::Products& costs) const override {
        return costs.register_flops_per_us;
    }
};

// A workgroup computes a tile from operands in shared memory.
class TiledProducts final : public PortableProducts {
public:
    [[nodiscard]] std::string_view name() const override { return "tiled"; }
    [[nodiscard]] bool runs_on(const Profile& profile) const override;

protected:
    [[nodiscard]] Tiles tiles(const Profile& profile) const override;
    [[nodiscard]] double flops_per_us(const Costs::Products& costs) const override { return costs.tiled_flops_per_us; }
};

}  // namespace vkrnn
