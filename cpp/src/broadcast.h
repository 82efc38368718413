// Matrix products in the broadcast flavour, for llvmpipe: see shaders/include/broadcast.glsl.
#pragma once

#include "plan_builder.h"

namespace vkrnn {

// Whether the product is worth packing its operands for.
bool suits_broadcast(const Product& product);

// The product, by blocks of k over as many rows as stay in a cache. See PlanBuilder::product.
bool broadcast_product(PlanBuilder& builder, const std::string& label, const Product& whole, std::optional<Matrix> bias,
                       bool independent);

// B(n, k) of a product as panels.
struct Panels {
    std::size_t buffer = 0;
    std::int64_t count = 0, depth = 0;  // panels of 2 * lanes columns; rows
};
Panels pack_panels(PlanBuilder& builder, const std::string& label, const Matrix& b, std::int64_t n, std::int64_t k,
                   std::int64_t depth_multiple, bool independent);

// The product of each step: rows of `a` times panels, in `slabs` parts of k, slab after slab of [rows, n].
struct StepProduct {
    std::int64_t rows = 0, n = 0, k = 0;
    Place a = 0;              // of index 0
    std::int64_t lda = 0;     // elements
    std::int64_t a_step = 0;  // elements from one index to the next; the index is max(step + lag, 0)
    std::int32_t step = 0, lag = 0;
    Panels b;
    Place out = 0;
};
std::int64_t step_slabs(const PlanBuilder& builder, std::int64_t rows, std::int64_t n, std::int64_t k);
// One dispatch, or several where there are many panels or rows; their counter is at abi::kBroadcastCounter.
std::vector<Dispatch> step_product(PlanBuilder& builder, const std::string& label, const StepProduct& product);

// Copies rows of `columns` elements that begin `row` elements apart in both places.
void copy_rows(PlanBuilder& builder, const std::string& label, Place from, Place to, std::int64_t rows,
               std::int64_t columns, std::int64_t row);

}  // namespace vkrnn
