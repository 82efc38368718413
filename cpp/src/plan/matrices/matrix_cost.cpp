#include "matrix_cost.h"

#include "plan/gpu.h"

namespace vkrnn {
namespace {

constexpr MatrixShape kShapes[] = {{1, 1, 1, 4},  {1, 1, 1, 8}, {1, 1, 1, 16},   {2, 1, 1, 16}, {1, 2, 1, 8},
                                   {1, 2, 1, 16}, {2, 2, 1, 8}, {2, 2, 1, 16},   {1, 3, 1, 8},  {2, 3, 1, 8},
                                   {2, 2, 2, 8},  {2, 4, 1, 8}, {1, 2, 2, 8},    {1, 3, 2, 8},  {2, 2, 2, 4},
                                   {2, 3, 2, 4},  {2, 3, 2, 6}, {2, 2, 2, 4, 2}, {2, 4, 2, 4},  {4, 2, 2, 4},
                                   {2, 2, 3, 4},  {4, 1, 3, 4}, {1, 2, 4, 4},    {2, 2, 4, 2},  {2, 2, 4, 4}};

// Fitted to 2,000 measurements on an H200: several shapes for each of 107 calls. A multiprocessor runs its workgroups
// one after the other, and a subgroup its blocks along k. Products add little time, because they overlap with loads of
// other subgroups.
// Microseconds per step, per block of a subgroup, per product of half-precision matrices, and per row of matrices.
struct Pass {
    double step, block, product, row;
};
constexpr Pass kForward{2.5, 0.3, 0.0018, 0.7};
constexpr Pass kBackward{3.8, 0.19, 0.0052, 0};
// The factor on a block's time if two blocks are loaded ahead: for one half per weight, and for two.
constexpr double kPartAhead[] = {0.9, 0.7};
constexpr double kMicrosecondsPerSum = 0.044;         // per matrix of sums that goes through shared memory
constexpr double kMicrosecondsPerCell = 0.25;         // per cell of an invocation after the first
constexpr double kL2Bytes = 48e6;                     // each row of tiles reads larger weights from memory
constexpr double kMemoryBytesPerMicrosecond = 1.8e7;  // counts only the time for which a step waits

double weight_bytes(const Spec& spec, std::int64_t products, std::int64_t depth) {
    return static_cast<double>(2 * loop_halves(spec, false).right * spec.D() * spec.H * products * depth);
}

// Estimates the microseconds of one phase of a step, which the busiest multiprocessor determines.
double phase_cost(const MatrixShape& shape, const Spec& spec, const Profile& profile, bool tagged,
                  std::int64_t products, std::int64_t depth) {
    const std::int64_t side = profile.matrix_side;
    const Halves halves = loop_halves(spec, tagged);
    const Pass& pass = spec.gradients ? kBackward : kForward;
    const std::int64_t units = shape.tile_columns(side) / products;
    const std::int64_t row_tiles = ceil_div(spec.N, shape.tile_rows(side));
    const std::int64_t busiest = ceil_div(row_tiles * ceil_div(spec.H, units) * spec.D(), multiprocessors(profile));
    const std::int64_t blocks = ceil_div(depth, side);
    const std::int64_t matrices = std::int64_t{shape.rows} * shape.columns * shape.column_groups;
    const std::int64_t cells =
        ceil_div(shape.tile_rows(side) * units, std::int64_t{shape.subgroups()} * profile.subgroup_size);
    const double weights = weight_bytes(spec, products, depth);
    return pass.step +
           static_cast<double>(busiest) * (pass.block * (shape.blocks_ahead > 1 ? kPartAhead[halves.right - 1] : 1) *
                                               static_cast<double>(ceil_div(blocks, shape.depth_groups)) +
                                           pass.product * static_cast<double>(matrices * blocks * halves.products()) +
                                           kMicrosecondsPerSum * static_cast<double>(matrices * shape.depth_groups)) +
           pass.row * shape.rows + kMicrosecondsPerCell * static_cast<double>(cells - 1) +
           (weights > kL2Bytes ? static_cast<double>(row_tiles) * weights / kMemoryBytesPerMicrosecond : 0);
}

}  // namespace

std::span<const MatrixShape> loading_shapes() { return kShapes; }

bool weights_stay_in_cache(const Spec& spec) { return weight_bytes(spec, spec.G(), spec.H) <= kL2Bytes; }

double loading_step_cost(const MatrixShape& shape, const Spec& spec, const Profile& profile, bool tagged) {
    double microseconds = 0;
    for (const Phase& phase : phases_of(spec))
        microseconds += spec.gradients ? phase_cost(shape, spec, profile, tagged, 1, phase.count * spec.H)
                                       : phase_cost(shape, spec, profile, tagged, phase.count, spec.H);
    return microseconds;
}

}  // namespace vkrnn
