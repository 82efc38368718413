// Matrix products in the broadcast flavour, for llvmpipe: see shaders/include/broadcast.glsl.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "broadcast_pack.h"
#include "broadcast_tile.h"

namespace vkrnn {

// Whether the product is worth packing its operands for.
bool suits_broadcast(const Product& product);

// The product, by blocks of k over as many rows as stay in a cache. See PlanBuilder::product.
bool broadcast_product(PlanBuilder& builder, const std::string& label, const Product& whole, std::optional<Matrix> bias,
                       bool independent);

// Packs the columns of operand A that all the products have, where all of them are of this flavour; the first has them
// all.
void share_columns(PlanBuilder& builder, const std::string& label, std::initializer_list<Product*> products);

// Whether all rows' columns lie side by side, in whole vectors.
bool suits_broadcast(const PlanBuilder& builder, const RowSum& sum);
void broadcast_row_sum(PlanBuilder& builder, const std::string& label, const RowSum& sum, bool independent);

// The product of each step: rows of `a` times panels, in `slabs` parts of k, slab after slab of [rows, n].
struct StepProduct {
    std::int64_t rows = 0, n = 0, k = 0;
    Place a = 0;              // of index 0
    std::int64_t lda = 0;     // elements
    std::int64_t a_step = 0;  // elements from one index to the next; the index is max(step + lag, 0), less than steps
    std::int64_t steps = 1;
    std::int32_t step = 0, lag = 0;
    Panels b;
    Place out = 0;
};
// One dispatch, or several where there are many panels or rows.
std::vector<Dispatch> step_product(PlanBuilder& builder, const std::string& label, const StepProduct& product);

}  // namespace vkrnn
