// Sums, conversions and copies with shaders that any GPU can run, and what its product strategies share.
#pragma once

#include "plan/strategy.h"

namespace vkrnn {

// Returns the floating-point operations of the products around the time loop.
double product_flops(const Spec& spec);

// Adds a step that adds up `parts` contiguous parts of `columns` elements each.
void add_parts(PlanBuilder& builder, const std::string& label, std::size_t from, std::int64_t parts,
               std::int64_t columns, std::size_t out, std::int64_t out_offset);

// The base of the product strategies of GPUs. A derived class adds the products.
class ShaderProducts : public ProductStrategy {
public:
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

}  // namespace vkrnn
