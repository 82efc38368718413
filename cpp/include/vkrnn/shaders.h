// The names of the kernels that were built into the package. shader_code() in device.h returns their SPIR-V.
#pragma once

#include <string_view>
#include <vector>

namespace vkrnn {

// Returns all names, in no particular order.
std::vector<std::string_view> shader_names();

}  // namespace vkrnn
