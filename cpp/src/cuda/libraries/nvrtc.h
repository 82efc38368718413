// NVRTC, NVIDIA's compiler for CUDA C++, opened at run time.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace vkrnn::cuda {

// A compilation's result: the code for one architecture, or the compiler's messages.
struct Compiled {
    std::vector<std::byte> cubin;
    std::string log;
};

class Nvrtc {
public:
    // Returns the compiler that find_nvrtc() finds. It is opened once per process. Throws DeviceError if there is none,
    // or only one that is newer than the driver; the message says what to install.
    static const Nvrtc& get();

    [[nodiscard]] int version() const { return version_; }  // 13000 for 13.0

    // Compiles a source, which may include `headers` by name. Thread-safe.
    [[nodiscard]] Compiled compile(const std::string& source,
                                   const std::vector<std::pair<std::string, std::string>>& headers,
                                   const std::vector<std::string>& options) const;

private:
    explicit Nvrtc(const std::string& path);
    void* library_ = nullptr;
    int version_ = 0;
    template <class Type>
    [[nodiscard]] Type* find(const char* name) const;
};

// Returns why there is no compiler, and what to install; empty if there is one. Opens it.
std::string nvrtc_problem();

}  // namespace vkrnn::cuda
