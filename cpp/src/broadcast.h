// Matrix products in the broadcast flavour, for llvmpipe: see shaders/include/broadcast.glsl.
#pragma once

#include <initializer_list>
#include <numeric>

#include "plan_builder.h"

namespace vkrnn {

// Sets the push constant through which kernels read the numbers of workgroups and subgroups.
template <typename Push>
void set_table(Push& push) {
    std::iota(std::begin(push.table), std::end(push.table), 0u);
}

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

// B(n, k) of a product as panels.
struct Panels {
    std::size_t buffer = 0;
    std::int64_t count = 0, depth = 0;  // panels of 2 * lanes columns; rows
};

// What a workgroup of the step kernels takes: see shaders/include/broadcast_step.glsl.
struct StepTile {
    std::int64_t rows = 1, vectors = 2;
    std::int64_t subgroups = 1, depth = 0;
    [[nodiscard]] std::int64_t parts() const { return rows * vectors; }
};
// The best tile whose kernel forms the product of rows of k elements with `slots` matrices of H rows; none where a
// kernel of its own for the product is better, or the subgroups' sums would not fit into the shared memory.
std::optional<StepTile> fused_tile(const PlanBuilder& builder, std::int64_t slots, std::int64_t k);
// A tile of a kernel that forms none.
StepTile unfused_tile(const PlanBuilder& builder);
// Those matrices as such a kernel reads them: element (j, k) of slot s is at offset + s * slot + j * row + k * column.
struct SlotMatrices {
    std::size_t buffer = 0;
    std::int64_t offset = 0, slot = 0, row = 0, column = 0;
};
std::size_t pack_slots(PlanBuilder& builder, const SlotMatrices& matrices, std::int64_t slots, std::int64_t k,
                       const StepTile& tile);
Panels pack_panels(PlanBuilder& builder, const std::string& label, const Matrix& b, std::int64_t n, std::int64_t k,
                   std::int64_t depth_multiple, bool independent);

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
// Whether the slabs cover k exactly and are few enough for the cell's code to add up.
bool can_step_product(const PlanBuilder& builder, std::int64_t rows, std::int64_t n, std::int64_t k);
std::int64_t step_slabs(const PlanBuilder& builder, std::int64_t rows, std::int64_t n, std::int64_t k);
// One dispatch, or several where there are many panels or rows; their counter is at abi::kBroadcastCounter.
std::vector<Dispatch> step_product(PlanBuilder& builder, const std::string& label, const StepProduct& product);

// Copies rows of `columns` elements that begin `row` elements apart in both places.
void copy_rows(PlanBuilder& builder, const std::string& label, Place from, Place to, std::int64_t rows,
               std::int64_t columns, std::int64_t row);

}  // namespace vkrnn
