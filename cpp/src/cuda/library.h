// Shared libraries that are opened at run time and never closed.
#pragma once

#include <string>

namespace vkrnn::cuda {

// Opens a library by a file name or a path. Returns null if there is none, or if it cannot be loaded.
void* open_library(const std::string& name);

// Returns the address of a library's function; null if it has none of this name.
void* find_function(void* library, const char* name);

}  // namespace vkrnn::cuda
