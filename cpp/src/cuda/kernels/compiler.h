// Compiles the kernels of plans, and keeps their code in the cache's folder.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cuda/libraries/nvrtc.h"
#include "vkrnn/plan.h"

namespace vkrnn::cuda {

// Returns the name of a kernel in its code, which profilers and debuggers show: "vkrnn_lstm_slices_forward".
std::string entry_name(const Kernel& kernel);

class Compiler {
public:
    // Compiles for a compute capability, such as 9.0. Throws DeviceError like Nvrtc::get().
    Compiler(int major, int minor);

    // Returns the code of a kernel, from the cache if it is there. Thread-safe. Throws DeviceError if the compiler
    // refuses the kernel.
    [[nodiscard]] std::vector<std::byte> compile(const Kernel& kernel) const;

    [[nodiscard]] std::string name() const;  // "NVRTC 13.0"
    // Returns what the code of all kernels depends on, but for constants: "NVRTC-13.0-sm_90-" and a hash of the
    // sources.
    [[nodiscard]] std::string key() const;

private:
    const Nvrtc& nvrtc_;
    std::string architecture_;  // "sm_90"
    std::string folder_;        // of the cache; empty if there is none
};

}  // namespace vkrnn::cuda
