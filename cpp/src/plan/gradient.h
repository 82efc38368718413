// Gradient plans: the counterpart of the forward plans in plan.cpp.
#pragma once

#include "vkrnn/plan.h"

namespace vkrnn {

Plan make_gradient_plan(const Spec& spec, const Profile& profile, const Flavour& flavour);

}  // namespace vkrnn
