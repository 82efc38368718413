#include "matrix_cost.h"

#include <algorithm>

namespace vkrnn {
namespace {

constexpr MatrixShape kShapes[] = {{1, 1, 1, 4},  {1, 1, 1, 8}, {1, 1, 1, 16}, {1, 2, 1, 8}, {2, 1, 1, 16},
                                   {1, 2, 1, 16}, {1, 3, 1, 8}, {2, 2, 1, 8},  {2, 3, 1, 6}, {2, 3, 1, 8},
                                   {2, 3, 2, 4},  {2, 2, 2, 4}, {4, 2, 2, 4},  {2, 2, 4, 2}, {4, 1, 1, 8, 2},
                                   {4, 1, 3, 4},  {4, 2, 2, 2}};

// These constants were fitted to the times of steps on an H200. A multiprocessor receives its operands as fast as it
// asks for them, and each subgroup asks for those of one k block at a time.
constexpr double kMicrosecondsPerStep = 3.3;
constexpr double kMicrosecondsPerGroup = 0.4;
constexpr double kMicrosecondsPerRequest = 0.8;
constexpr double kMostBytesPerMicrosecond = 6e4;
constexpr double kFlopsPerMicrosecond = 1.55e6;     // of products of halves
constexpr double kL2Bytes = 48e6;                   // weights beyond these are read from memory by each row of tiles
constexpr double kMemoryBytesPerMicrosecond = 8e6;  // as far as a step waits for it

// Estimates the microseconds that a phase of a step takes, which the busiest multiprocessor decides.
double phase_cost(const MatrixShape& shape, const Spec& spec, const Profile& profile, std::int64_t products,
                  std::int64_t depth) {
    const std::int64_t side = profile.matrix_side;
    const Halves halves = loop_halves(spec);
    const std::int64_t units = shape.tile_columns(side) / products;
    const std::int64_t groups = ceil_div(spec.N, shape.tile_rows(side)) * ceil_div(spec.H, units) * spec.D();
    const std::int64_t busiest = ceil_div(groups, multiprocessors(profile));
    const std::int64_t rows = shape.rows, columns = shape.columns;
    const std::int64_t registers = 8 * rows * columns + 8 * (rows * halves.left + columns * halves.right) + 40;
    const std::int64_t resident =
        std::clamp(kRegisters / (registers * shape.subgroups() * profile.subgroup_size), std::int64_t{1}, busiest);
    const std::int64_t left_bytes = 2 * halves.left, right_bytes = 2 * halves.right;  // of an element
    const auto asked =
        static_cast<double>(resident * shape.subgroups() * (rows * left_bytes + columns * right_bytes) * side * side);
    const double rate = std::min(kMostBytesPerMicrosecond, asked / kMicrosecondsPerRequest);
    const auto bytes = static_cast<double>(
        busiest * (shape.tile_rows(side) * left_bytes + shape.tile_columns(side) * right_bytes) * depth);
    const auto weights = static_cast<double>(spec.D() * spec.H * products * depth * right_bytes);
    const auto row_tiles = static_cast<double>(ceil_div(spec.N, shape.tile_rows(side)));
    const auto flops =
        static_cast<double>(2 * busiest * halves.products() * shape.tile_rows(side) * shape.tile_columns(side) * depth);
    return kMicrosecondsPerStep + kMicrosecondsPerGroup * static_cast<double>(busiest) +
           std::max(bytes / rate, flops / kFlopsPerMicrosecond) +
           (weights > kL2Bytes ? row_tiles * weights / kMemoryBytesPerMicrosecond : 0);
}

}  // namespace

std::span<const MatrixShape> loading_shapes() { return kShapes; }

double loading_step_cost(const MatrixShape& shape, const Spec& spec, const Profile& profile) {
    double microseconds = 0;
    if (spec.gradients) {
        for (const Phase& phase : backward_phases(spec))
            microseconds += phase_cost(shape, spec, profile, 1, phase.slots * spec.H);
    } else {
        for (const Phase& phase : forward_phases(spec))
            microseconds += phase_cost(shape, spec, profile, phase.gates, spec.H);
    }
    return microseconds;
}

}  // namespace vkrnn
