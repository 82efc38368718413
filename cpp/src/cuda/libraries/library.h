// Shared libraries that are opened at run time and never closed: the driver, and those of NVIDIA's that are found among
// Python's packages.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/fork_safe_mutex.h"
#include "base/system.h"

namespace vkrnn::cuda {

// Returns a library's function, of type `Type`. Throws std::runtime_error if it has none of this name.
template <class Type>
Type* require_function(void* library, const char* name) {
    auto* const function = reinterpret_cast<Type*>(system::find_function(library, name));
    if (function == nullptr) throw std::runtime_error(std::string("it has no ") + name);
    return function;
}

// A library that belongs to a version of CUDA, and where it may be.
struct LibraryKind {
    std::string name;                // "NVRTC"
    std::string purpose;             // "which compiles the kernels for CUDA"
    const char* variable;            // the environment variable with which the user names the file
    std::string packages;            // how to install it
    std::vector<std::string> files;  // names for the loader, best first
    bool (*is_it)(const std::string& file);
};

// Guards what find_library() finds.
ForkSafeMutex& libraries_mutex();

// Opens a library: the one that the user names, else the loader's, those of NVIDIA's Python packages, and those of
// CUDA's toolkit, in this order. `open` is given paths until it accepts one. It returns the library's version of CUDA,
// 13000 for 13.0, which must not be of a later major version than the driver's, and throws std::runtime_error if the
// file cannot be used. Throws DeviceError if there is no such library; the message says what to install. The mutex must
// be locked.
void find_library(const LibraryKind& kind, const std::function<int(const std::string& path)>& open);

}  // namespace vkrnn::cuda
