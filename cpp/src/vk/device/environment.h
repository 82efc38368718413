// Reads environment variables that turn something on.
#pragma once

#include <cstdlib>
#include <cstring>

namespace vkrnn::vk {

// Returns whether the variable is 1.
inline bool is_on(const char* variable) {
    const char* value = std::getenv(variable);
    return value != nullptr && std::strcmp(value, "1") == 0;
}

}  // namespace vkrnn::vk
