// Tiles of a step whose weights are loaded in every step, and what such a step costs.
#pragma once

#include <span>

#include "matrix_plan.h"

namespace vkrnn {

// Each of these shapes was the fastest one, or nearly so, for some size on an H200.
std::span<const MatrixShape> loading_shapes();

// Returns whether a multiprocessor finds the weights of a step in the cache that all of them share.
bool weights_stay_in_cache(const Spec& spec);

// Estimates the microseconds of a step that loads its weights, all of its phases together. `tagged`: see loop_halves().
double loading_step_cost(const MatrixShape& shape, const Spec& spec, const Profile& profile, bool tagged);

}  // namespace vkrnn
