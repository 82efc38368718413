// Tile shapes and cost estimates for steps that load their weights every time.
#pragma once

#include <span>

#include "matrices_costs.h"
#include "matrix_plan.h"

namespace vkrnn {

// Returns the tile shapes to choose from. Each was the fastest one, or nearly so, for some size on an H200.
std::span<const MatrixShape> loading_shapes();

// Returns whether the weights of a step fit in the L2 cache, which all multiprocessors share.
bool weights_stay_in_cache(const Spec& spec, const MatrixCosts& costs);

// Estimates the microseconds of a step that loads its weights, as the sum of its phases.
double loading_step_cost(const MatrixShape& shape, const Spec& spec, const Profile& profile, const MatrixCosts& costs);

}  // namespace vkrnn
