// The sources of the kernels, which are part of the package.
#pragma once

#include <span>

namespace vkrnn::cuda {

struct SourceFile {
    const char* name;  // the path below shaders/: "portable/reduce.comp"
    const char* text;
};
std::span<const SourceFile> sources();

}  // namespace vkrnn::cuda
