#include "matrix_cost.h"

#include "plan/gpu/gpu.h"

namespace vkrnn {
namespace {

constexpr MatrixShape kShapes[] = {
    {1, 1, 1, 4},  {1, 1, 1, 8}, {1, 1, 1, 16}, {2, 1, 1, 16},   {1, 2, 1, 8},     {1, 2, 1, 16},   {2, 2, 1, 8},
    {2, 2, 1, 16}, {1, 3, 1, 8}, {2, 3, 1, 8},  {2, 2, 2, 8},    {2, 4, 1, 8},     {1, 2, 2, 8},    {1, 3, 2, 8},
    {2, 2, 2, 4},  {2, 3, 2, 4}, {2, 3, 2, 6},  {2, 2, 2, 4, 2}, {2, 4, 2, 4},     {4, 2, 2, 4},    {2, 2, 3, 4},
    {4, 1, 3, 4},  {1, 2, 4, 4}, {2, 2, 4, 2},  {2, 2, 4, 4},    {2, 1, 1, 16, 2}, {2, 2, 1, 16, 2}};

double weight_bytes(const Spec& spec, std::int64_t products, std::int64_t depth) {
    return static_cast<double>(2 * loop_parts(spec).right * spec.D() * spec.H * products * depth);
}

// Estimates the microseconds of one phase of a step, which the busiest multiprocessor determines.
double phase_cost(const MatrixShape& shape, const Spec& spec, const Profile& profile, const MatrixCosts& costs,
                  std::int64_t products, std::int64_t depth) {
    const std::int64_t side = profile.matrix_side;
    const Parts parts = loop_parts(spec);
    const MatrixCosts::Pass& pass = spec.gradients ? costs.backward : costs.forward;
    const double ahead = parts.right == 1 ? costs.one_part_ahead : costs.two_parts_ahead;
    const std::int64_t units = shape.tile_columns(side) / products;
    const std::int64_t row_tiles = ceil_div(spec.N, shape.tile_rows(side));
    const std::int64_t busiest = ceil_div(row_tiles * ceil_div(spec.head_units(), units) * spec.D() * spec.heads(),
                                          multiprocessors(profile, spec));
    const std::int64_t blocks = ceil_div(depth, side);
    const std::int64_t matrices = std::int64_t{shape.rows} * shape.columns * shape.column_groups;
    const std::int64_t cells =
        ceil_div(shape.tile_rows(side) * units, std::int64_t{shape.subgroups()} * profile.subgroup_size);
    const double weights = weight_bytes(spec, products, depth);
    return pass.step +
           static_cast<double>(busiest) * (pass.block * (shape.blocks_ahead > 1 ? ahead : 1) *
                                               static_cast<double>(ceil_div(blocks, shape.depth_groups)) +
                                           pass.product * static_cast<double>(matrices * blocks * parts.products()) +
                                           costs.sum * static_cast<double>(matrices * shape.depth_groups)) +
           pass.row * shape.rows + costs.cell * static_cast<double>(cells - 1) +
           (weights > costs.l2_bytes ? static_cast<double>(row_tiles) * weights / costs.memory_bytes_per_us : 0);
}

}  // namespace

std::span<const MatrixShape> loading_shapes() { return kShapes; }

bool weights_stay_in_cache(const Spec& spec, const MatrixCosts& costs) {
    return weight_bytes(spec, spec.G(), spec.head_units()) <= costs.l2_bytes;
}

double loading_step_cost(const MatrixShape& shape, const Spec& spec, const Profile& profile, const MatrixCosts& costs) {
    double microseconds = 0;
    for (const Phase& phase : phases_of(spec))
        microseconds += spec.gradients ? phase_cost(shape, spec, profile, costs, 1, phase.count * spec.head_units())
                                       : phase_cost(shape, spec, profile, costs, phase.count, spec.head_units());
    return microseconds;
}

}  // namespace vkrnn
