#include "matrix_loop.h"

#include <algorithm>

#include "matrix_plan.h"

namespace vkrnn {
namespace {

// Each of these shapes was the fastest one for some size on an H200.
constexpr MatrixShape kShapes[] = {{1, 1, 1, 4}, {1, 1, 1, 8},  {1, 1, 1, 16}, {1, 2, 1, 8}, {1, 2, 1, 16},
                                   {1, 3, 1, 8}, {2, 1, 1, 16}, {2, 2, 1, 8},  {2, 3, 1, 6}, {2, 2, 2, 4},
                                   {2, 2, 4, 2}, {4, 1, 1, 8},  {4, 2, 2, 2},  {4, 2, 2, 4}};

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

double step_cost(const MatrixShape& shape, const Spec& spec, const Profile& profile) {
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

}  // namespace

bool MatrixLoop::runs_on(const Profile& profile) const { return has_matrix_units(profile); }

Sizes MatrixLoop::sizes(const Profile& /*profile*/, const Sizes& wanted) const {
    return checked_sizes(kShapes[0], wanted);
}

std::vector<Sizes> MatrixLoop::variants(const Profile& /*profile*/) const {
    std::vector<Sizes> found;
    for (const MatrixShape& shape : kShapes) found.push_back(sizes_of(shape));
    return found;
}

std::optional<Offer> MatrixLoop::offer(const Spec& spec, const Profile& profile, const Sizes& wanted) const {
    if (spec.dtype == Dtype::float64) return std::nullopt;
    if (!spec.gradients && !is_bounded(spec)) return std::nullopt;
    std::optional<Offer> best;
    for (const MatrixShape& usual : kShapes) {
        const MatrixShape shape = with_sizes(usual, wanted);
        if (!fits(shape, spec, profile)) continue;
        const double microseconds = static_cast<double>(spec.T) * step_cost(shape, spec, profile);
        if (!best || microseconds < best->microseconds) best = Offer{microseconds, sizes_of(shape)};
    }
    if (best) best->microseconds = on_gpu(profile, best->microseconds);
    return best;
}

void MatrixLoop::forward(PlanBuilder& builder, const Inputs& inputs, StepBlock views) const {
    const Spec& spec = builder.spec();
    MatrixPlan plan(builder, inputs, views, shape_of(builder), spec.two_phases() ? 3 : 2, 1);
    Loop loop{spec.T, 0, 1, {}};
    for (const Phase& phase : forward_phases(spec))
        loop.body.push_back(
            plan.step(phase, "matrices_forward", plan.forward_weights(phase), spec.descriptor.has(Flag::training)));
    builder.add(std::move(loop));
}

void MatrixLoop::recompute(PlanBuilder& builder, const BackwardPass& pass) const { add_recompute(builder, pass); }

void MatrixLoop::backward(PlanBuilder& builder, const BackwardPass& pass) const {
    const Spec& spec = builder.spec();
    MatrixPlan plan(builder, pass.inputs, pass.views, shape_of(builder), 2, spec.G());
    Loop loop{spec.T, static_cast<std::int32_t>(spec.T - 1), -1, {}};
    for (const Phase& phase : backward_phases(spec))
        loop.body.push_back(plan.step(phase, "matrices_backward", plan.backward_weights(phase), false));
    Dispatch initial = at_step(loop.body.front(), "initial state", -1);
    builder.add(std::move(loop));
    if (spec.has(Argument::init_state)) builder.add(std::move(initial));
}

}  // namespace vkrnn
