// The time loops on matrix units share this: the shape of a workgroup's tile, and the planning of a loop.
#pragma once

#include "matrix_units.h"
#include "plan/portable/step_kernels.h"
#include "plan/strategy.h"
#include "plan/tuning_parameters.h"

namespace vkrnn {

// Matrices of a subgroup along the batch rows and along the columns; subgroups of a workgroup along the columns and
// along the sums; k blocks that a subgroup loads ahead of their products.
struct MatrixShape {
    std::uint32_t rows = 1, columns = 1, column_groups = 1, depth_groups = 1, blocks_ahead = 1;

    [[nodiscard]] std::uint32_t subgroups() const { return column_groups * depth_groups; }
    [[nodiscard]] std::int64_t tile_rows(std::int64_t side) const { return rows * side; }
    [[nodiscard]] std::int64_t tile_columns(std::int64_t side) const { return columns * side * column_groups; }

    static std::span<const TuningParameter<MatrixShape>> parameters();
};

// Returns whether a loop with such a tile fits the call and the device.
bool fits(const MatrixShape& shape, const Spec& spec, const Profile& profile);

// Returns whether |h| never exceeds the largest of 1 and its initial values, so that its scale is known beforehand.
bool is_bounded(const Spec& spec);

// Returns the shape that a plan's strategy was given.
MatrixShape shape_of(const PlanBuilder& builder);

// The planning of one loop. `regions`: how many steps' operands are kept; `slots`: how many a unit has in one;
// `tagged`: whether the operand's words tell at which step they were stored.
class MatrixPlan {
public:
    MatrixPlan(PlanBuilder& builder, const Inputs& inputs, const StepBlock& views, const MatrixShape& shape,
               std::int64_t regions, std::int64_t slots, bool tagged = false);

    [[nodiscard]] StepBlock& views() { return views_; }
    [[nodiscard]] std::int64_t row_tiles() const { return ceil_div(spec_.N, shape_.tile_rows(side_)); }

    // A phase's weights, packed before the loop.
    struct Weights {
        MatrixBlocks blocks;
        std::int64_t products, first_block;
    };
    Weights forward_weights(const Phase& phase);
    Weights backward_weights(const Phase& phase);

    // Returns a phase's dispatch. `more` are constants that follow those of all such kernels; `tagged` says whether it
    // waits for words by their tags.
    Dispatch step(const Phase& phase, const std::string& driver, const Weights& weights, bool keep,
                  const std::vector<std::uint32_t>& more = {}, bool tagged = false);

private:
    [[nodiscard]] std::int64_t unit_tiles(std::int64_t products) const;
    [[nodiscard]] MatrixSource weights_source() const;
    [[nodiscard]] std::vector<std::uint32_t> constants(const StepOptions& options) const;
    void start(std::int64_t regions, std::int64_t slots);
    Weights packed(const Phase& phase, const MatrixSource& source, std::int64_t first_block);

    PlanBuilder& builder_;
    const Spec& spec_;
    const std::size_t weight_;
    const std::int64_t side_, run_blocks_;
    StepBlock views_;
    std::size_t largest_ = kNoBuffer;
    const MatrixShape shape_;
    const bool tagged_;
};

}  // namespace vkrnn
