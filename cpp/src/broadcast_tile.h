// How the kernels of the broadcast flavour divide their work.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "abi.h"
#include "plan_builder.h"

namespace vkrnn {

inline constexpr std::int64_t kTable = abi::kBroadcastTable;
inline constexpr std::int64_t kTileRows =
    8;  // of a product: with two vectors in each as many sums as there are registers

// A kernel of this flavour: one of straight lines, or with loops.
inline std::size_t broadcast_kernel(PlanBuilder& builder, std::string shader, std::vector<std::uint32_t> constants) {
    if (builder.flavour().loops()) shader += "_loops";
    return builder.kernel(std::move(shader), std::move(constants));
}

// Elements of a row of a panel.
inline std::int64_t panel_width(const PlanBuilder& builder) {
    return std::int64_t{2} * builder.profile().subgroup_size;
}

// How a workgroup splits k: `depth` is unrolled or a loop, and as many subgroups as there are `blocks` take one each.
struct Split {
    std::int64_t depth, blocks;
    [[nodiscard]] std::int64_t whole() const { return depth * blocks; }
};

// Of a product of many rows.
Split gemm_split(const PlanBuilder& builder, std::int64_t k);

// A workgroup's tile of a product with rows of `panels` panels. Of few rows it takes more panels; their loads are what
// costs most to compile.
struct GemmTile {
    std::int64_t rows, panels;
    Split split;
};
GemmTile gemm_tile(const PlanBuilder& builder, std::int64_t rows, std::int64_t panels, std::int64_t k);

// The product of each step, of rows of k with n columns: whether there can be one, and the number of slabs, which are
// parts of k that the cell adds up.
bool can_step_product(const PlanBuilder& builder, std::int64_t rows, std::int64_t n, std::int64_t k);
std::int64_t step_slabs(const PlanBuilder& builder, std::int64_t rows, std::int64_t n, std::int64_t k);

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

}  // namespace vkrnn
