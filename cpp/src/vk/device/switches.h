// Environment variables that switch something on.
#pragma once

#include "vkrnn/environment.h"

namespace vkrnn::vk {

// Returns whether the variable is 1.
inline bool is_on(const char* variable) { return environment_variable(variable) == "1"; }

}  // namespace vkrnn::vk
