// Shared by the time loops on matrix units: the shape of a workgroup's tile, and the planning of a loop.
#pragma once

#include "matrix_units.h"
#include "plan/gpu/shader_loop.h"

namespace vkrnn {

// The tile of a workgroup. rows, columns: matrices of a subgroup along the batch rows and along the columns.
// column_groups, depth_groups: subgroups of a workgroup along the columns and along k. blocks_ahead: k blocks that a
// subgroup loads before it multiplies them.
struct MatrixShape {
    std::uint32_t rows = 1, columns = 1, column_groups = 1, depth_groups = 1, blocks_ahead = 1;

    [[nodiscard]] std::uint32_t subgroups() const { return column_groups * depth_groups; }
    [[nodiscard]] std::int64_t tile_rows(std::int64_t side) const { return rows * side; }
    [[nodiscard]] std::int64_t tile_columns(std::int64_t side) const { return columns * side * column_groups; }

    static std::span<const TuningParameter<MatrixShape>> parameters();
};

// Returns whether a loop with this tile fits the call and the device.
bool fits(const MatrixShape& shape, const Spec& spec, const Profile& profile);

// Returns the bytes of shared memory that a launch can give a workgroup besides the sums of its depth groups.
std::int64_t free_shared_memory(const MatrixShape& shape, const Profile& profile);

// Returns the shape that the plan's tuning parameters give.
MatrixShape shape_of(const PlanBuilder& builder);

// Plans one loop. `tagged`: whether each word of the operand has a tag, which tells it from the word that an earlier
// step stored there.
class MatrixPlan {
public:
    MatrixPlan(PlanBuilder& builder, const Inputs& inputs, const StepBlock& views, bool tagged = false);

    [[nodiscard]] StepBlock& views() { return views_; }
    [[nodiscard]] std::int64_t parts() const { return parts_; }
    [[nodiscard]] std::int64_t row_tiles() const { return ceil_div(spec_.N, shape_.tile_rows(side_)); }

    // The weights of a phase, packed before the loop.
    struct Weights {
        MatrixBlocks blocks;
        std::int64_t products, first_block;
    };
    Weights pack_weights(const Phase& phase);

    // Returns the constants of a phase's kernel. `tagged`: whether it waits until words have the step's tag.
    [[nodiscard]] Constants constants(const StepOptions& options, bool tagged) const;
    // Returns a phase's dispatch, which makes `steps` steps if they are several. `more_shared`: bytes besides the sums.
    Dispatch step(const Phase& phase, const std::string& cell_kernel, const Weights& weights, Constants constants,
                  std::uint32_t steps = 0, std::int64_t more_shared = 0);

private:
    [[nodiscard]] std::int64_t unit_tiles(std::int64_t products) const;
    void start();

    PlanBuilder& builder_;
    const Spec& spec_;
    const std::size_t weight_;
    const std::int64_t side_;
    const std::int64_t units_, parts_;  // of a head; of all directions: each head is a part
    const std::int64_t run_blocks_;
    const std::int64_t regions_, slots_;  // steps whose operands are kept; slots of a unit in such an operand
    StepBlock views_;
    std::size_t absmax_ = kNoBuffer;
    const MatrixShape shape_;
    const bool tagged_;
};

}  // namespace vkrnn
