// Makes forward plans.
#pragma once

#include "strategy.h"

namespace vkrnn {

Plan make_forward_plan(const Spec& spec, const Profile& profile, const Chosen& chosen);

}  // namespace vkrnn
