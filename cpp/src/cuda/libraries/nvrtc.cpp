#include "cuda/libraries/nvrtc.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <system_error>

#include "cuda/libraries/library.h"
#include "vkrnn/error.h"

namespace vkrnn::cuda {
namespace {

namespace fs = std::filesystem;

enum class Program : std::uintptr_t {};  // a pointer in nvrtc.h

const LibraryKind& kind() {
    static const LibraryKind& nvrtc = *new LibraryKind{
        // NOLINT(cppcoreguidelines-owning-memory)
        .name = "NVRTC",
        .purpose = "which compiles the kernels for CUDA",
        .variable = "VKRNN_NVRTC",
        .packages = "pip install nvidia-cuda-nvrtc for a driver of CUDA 13, nvidia-cuda-nvrtc-cu12 for one of CUDA 12",
        .files = system::kIsWindows ? std::vector<std::string>{"nvrtc64_130_0.dll", "nvrtc64_120_0.dll"}
                                    : std::vector<std::string>{"libnvrtc.so.13", "libnvrtc.so.12"},
        .is_it = [](const std::string& file) {
            if (!system::kIsWindows) return file.starts_with("libnvrtc.so");
            return file.starts_with("nvrtc64_") && file.ends_with(".dll") && file.find("builtins") == std::string::npos;
        }};
    return nvrtc;
}

}  // namespace

Nvrtc::Nvrtc(const std::string& path) {
    // It opens its part "builtins" by name, which only finds it beside itself if it is open already.
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(fs::path(path).parent_path(), error))
        if (entry.path().filename().string().starts_with("libnvrtc-builtins.so"))
            system::open_library(entry.path().string());
    library_ = system::open_library(path);
    if (library_ == nullptr) throw std::runtime_error("it cannot be loaded");
    int major = 0, minor = 0;
    if (find<int(int*, int*)>("nvrtcVersion")(&major, &minor) != 0)
        throw std::runtime_error("it does not tell its version");
    version_ = 1000 * major + 10 * minor;
}

template <class Type>
Type* Nvrtc::find(const char* name) const {
    return require_function<Type>(library_, name);
}

const Nvrtc& Nvrtc::get() {
    const std::lock_guard lock(libraries_mutex());
    static auto& found = *new std::unique_ptr<const Nvrtc>;  // NOLINT(cppcoreguidelines-owning-memory)
    if (found) return *found;
    std::unique_ptr<const Nvrtc> opened;
    find_library(kind(), [&](const std::string& path) {
        opened.reset(new Nvrtc(path));
        return opened->version();
    });
    found = std::move(opened);
    return *found;
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
