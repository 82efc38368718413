// Tiles of a step whose weights are loaded in every step, and what such a step costs.
#pragma once

#include <span>

#include "matrix_plan.h"

namespace vkrnn {

// Each of these shapes was the fastest one for some size on an H200.
std::span<const MatrixShape> loading_shapes();

// Estimates the microseconds of a step that loads its weights, all of its phases together.
double loading_step_cost(const MatrixShape& shape, const Spec& spec, const Profile& profile);

}  // namespace vkrnn
