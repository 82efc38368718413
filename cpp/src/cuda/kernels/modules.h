// The kernels that a device has loaded.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/fork_safe_mutex.h"
#include "cuda/kernels/compiler.h"
#include "cuda/libraries/driver.h"
#include "vkrnn/device.h"
#include "vkrnn/plan.h"

namespace vkrnn::cuda {

struct LoadedKernel {
    Function function{};   // null if cuBLASLt computes what it does
    unsigned threads = 0;  // of a workgroup
};

// Thread-safe. The context must be current in all functions.
class Modules {
public:
    // `max_shared_memory`: the bytes that a workgroup may have. Throws DeviceError like Compiler().
    Modules(int major, int minor, int max_shared_memory)
        : compiler_(std::make_shared<const Compiler>(major, minor)), max_shared_memory_(max_shared_memory) {}

    [[nodiscard]] const Compiler& compiler() const { return *compiler_; }
    ~Modules();
    Modules(const Modules&) = delete;
    Modules& operator=(const Modules&) = delete;

    // Returns the loaded kernels in the order of these. Compiles kernels that are not loaded, several at a time, and
    // calls `poll` meanwhile. Throws DriverError, DeviceError if a kernel cannot be compiled or the compiler does not
    // finish, and what ask() throws.
    std::vector<LoadedKernel> get(const std::vector<Kernel>& kernels, const std::string& prefix, const Poll& poll);

    [[nodiscard]] std::size_t size() const;

private:
    LoadedKernel load(const Kernel& kernel, const std::vector<std::byte>& cubin);

    std::shared_ptr<const Compiler> compiler_;
    int max_shared_memory_;
    mutable ForkSafeMutex mutex_{ForkSafeMutex::Kind::driver};
    std::map<Kernel, LoadedKernel> loaded_;
    std::vector<Module> modules_;
};

}  // namespace vkrnn::cuda
