#include "cuda/nvrtc.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <system_error>

#include "cuda/driver.h"
#include "cuda/library.h"
#include "fork_safe_mutex.h"
#include "vkrnn/cuda.h"
#include "vkrnn/environment.h"
#include "vkrnn/error.h"

namespace vkrnn::cuda {
namespace {

namespace fs = std::filesystem;

enum class Program : std::uintptr_t {};  // a pointer in nvrtc.h

constexpr const char* kInstallHint =
    "install it (pip install nvidia-cuda-nvrtc for a driver of CUDA 13, nvidia-cuda-nvrtc-cu12 for one of CUDA 12), or "
    "name the library in VKRNN_NVRTC";

ForkSafeMutex& mutex = *new ForkSafeMutex;  // NOLINT(cppcoreguidelines-owning-memory): used while the process ends
std::vector<std::string>& folders = *new std::vector<std::string>;  // NOLINT(cppcoreguidelines-owning-memory): likewise

bool is_nvrtc(const fs::path& file) {
    const std::string name = file.filename().string();
#ifdef _WIN32
    return name.starts_with("nvrtc64_") && name.ends_with(".dll") && name.find("builtins") == std::string::npos;
#else
    return name.starts_with("libnvrtc.so");
#endif
}

// Adds the libraries in a folder, the latest versions first.
void add_from(const fs::path& folder, std::vector<std::string>& found) {
    std::vector<std::string> here;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error))
        if (is_nvrtc(entry.path())) here.push_back(entry.path().string());
    std::ranges::sort(here, std::greater{});
    found.insert(found.end(), here.begin(), here.end());
}

// Returns what may be the library, best first: the one that the user names alone, else the loader's, those of NVIDIA's
// Python packages, and those of CUDA's toolkit.
std::vector<std::string> candidates() {
    if (const auto named = environment_variable("VKRNN_NVRTC"); named && !named->empty()) return {*named};
#ifdef _WIN32
    std::vector<std::string> found{"nvrtc64_130_0.dll", "nvrtc64_120_0.dll"};
    constexpr const char* kPart = "bin";
#else
    std::vector<std::string> found{"libnvrtc.so.13", "libnvrtc.so.12"};
    constexpr const char* kPart = "lib";
#endif
    std::error_code error;
    for (const std::string& folder : folders)
        for (const auto& package : fs::directory_iterator(folder, error)) add_from(package.path() / kPart, found);
    add_from("/usr/local/cuda/lib64", found);
    return found;
}

struct Search {
    std::unique_ptr<const Nvrtc> found;
    std::string problem;
};

}  // namespace

Nvrtc::Nvrtc(const std::string& path) {
    // It opens its part "builtins" by name, which only finds it beside itself if it is open already.
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(fs::path(path).parent_path(), error))
        if (entry.path().filename().string().starts_with("libnvrtc-builtins.so")) open_library(entry.path().string());
    library_ = open_library(path);
    if (library_ == nullptr) throw std::runtime_error("it cannot be loaded");
    int major = 0, minor = 0;
    if (find<int(int*, int*)>("nvrtcVersion")(&major, &minor) != 0)
        throw std::runtime_error("it does not tell its version");
    version_ = 1000 * major + 10 * minor;
}

template <class Type>
Type* Nvrtc::find(const char* name) const {
    auto* const function = reinterpret_cast<Type*>(find_function(library_, name));
    if (function == nullptr) throw std::runtime_error(std::string("it has no ") + name);
    return function;
}

const Nvrtc& Nvrtc::get() {
    static auto& search = *new Search;  // NOLINT(cppcoreguidelines-owning-memory): used while the process ends
    const std::lock_guard lock(mutex);
    if (search.found) return *search.found;
    const int newest = driver_version();
    search.problem = std::string("NVRTC, which compiles the kernels for CUDA, was not found; ") + kInstallHint;
    for (const std::string& path : candidates()) {
        try {
            std::unique_ptr<const Nvrtc> compiler(new Nvrtc(path));
            if (compiler->version() / 1000 > newest / 1000) {
                search.problem = "NVRTC " + version_text(compiler->version()) + " (" + path +
                                 ") is newer than the driver, which is of CUDA " + version_text(newest) + "; " +
                                 kInstallHint;
                continue;
            }
            search.found = std::move(compiler);
            return *search.found;
        } catch (const std::runtime_error& error) {
            if (environment_variable("VKRNN_NVRTC"))
                search.problem = "VKRNN_NVRTC=" + path + " is not NVRTC: " + error.what();
        }
    }
    throw DeviceError(search.problem);
}

Compiled Nvrtc::compile(const std::string& source, const std::vector<std::pair<std::string, std::string>>& headers,
                        const std::vector<std::string>& options) const {
    std::vector<const char*> texts, names, given;
    for (const auto& [name, text] : headers) {
        names.push_back(name.c_str());
        texts.push_back(text.c_str());
    }
    for (const std::string& option : options) given.push_back(option.c_str());
    const auto error_text = find<const char*(int)>("nvrtcGetErrorString");
    const auto require = [&](int result) {
        if (result != 0) throw std::runtime_error(error_text(result));
    };
    Program program{};
    require(find<int(Program*, const char*, const char*, int, const char* const*, const char* const*)>(
        "nvrtcCreateProgram")(&program, source.c_str(), "kernel.cu", static_cast<int>(headers.size()), texts.data(),
                              names.data()));
    const auto destroy = [&](Program* made) { find<int(Program*)>("nvrtcDestroyProgram")(made); };
    const std::unique_ptr<Program, decltype(destroy)> owner(&program, destroy);
    const int failed = find<int(Program, int, const char* const*)>("nvrtcCompileProgram")(
        program, static_cast<int>(given.size()), given.data());
    Compiled compiled;
    std::size_t size = 0;
    if (failed != 0) {
        require(find<int(Program, std::size_t*)>("nvrtcGetProgramLogSize")(program, &size));
        compiled.log.resize(size);
        require(find<int(Program, char*)>("nvrtcGetProgramLog")(program, compiled.log.data()));
        if (compiled.log.find_first_not_of(std::string("\0 \n", 3)) == std::string::npos)
            compiled.log = error_text(failed);
        return compiled;
    }
    require(find<int(Program, std::size_t*)>("nvrtcGetCUBINSize")(program, &size));
    compiled.cubin.resize(size);
    require(find<int(Program, std::byte*)>("nvrtcGetCUBIN")(program, compiled.cubin.data()));
    return compiled;
}

std::string nvrtc_problem() {
    try {
        Nvrtc::get();
        return {};
    } catch (const DeviceError& error) {
        return error.what();
    }
}

}  // namespace vkrnn::cuda

namespace vkrnn {

void set_cuda_packages(std::vector<std::string> folders) {
    const std::lock_guard lock(cuda::mutex);
    cuda::folders = std::move(folders);
}

}  // namespace vkrnn
