#include "cuda/libraries/library.h"

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <stdexcept>
#include <system_error>

#include "cuda/libraries/driver.h"
#include "vkrnn/cuda.h"
#include "vkrnn/environment.h"
#include "vkrnn/error.h"

namespace vkrnn::cuda {
namespace {

namespace fs = std::filesystem;

ForkSafeMutex& mutex = *new ForkSafeMutex(
    ForkSafeMutex::Kind::driver);  // NOLINT(cppcoreguidelines-owning-memory): used while the process ends
std::vector<std::string>& folders = *new std::vector<std::string>;  // NOLINT(cppcoreguidelines-owning-memory): likewise

// Adds the libraries in a folder, the latest versions first.
void add_from(const fs::path& folder, const LibraryKind& kind, std::vector<std::string>& found) {
    std::vector<std::string> here;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error))
        if (kind.is_it(entry.path().filename().string())) here.push_back(entry.path().string());
    std::ranges::sort(here, std::greater{});
    found.insert(found.end(), here.begin(), here.end());
}

// Returns what may be the library, best first.
std::vector<std::string> candidates(const LibraryKind& kind) {
    if (const auto named = environment_variable(kind.variable); named && !named->empty()) return {*named};
    constexpr const char* kPart = system::kIsWindows ? "bin" : "lib";
    std::vector<std::string> found = kind.files;
    std::error_code error;
    for (const std::string& folder : folders)
        for (const auto& package : fs::directory_iterator(folder, error)) add_from(package.path() / kPart, kind, found);
    add_from("/usr/local/cuda/lib64", kind, found);
    return found;
}

}  // namespace

ForkSafeMutex& libraries_mutex() { return mutex; }

void find_library(const LibraryKind& kind, const std::function<int(const std::string& path)>& open) {
    const int newest = driver_version();
    const std::string hint = "install it (" + kind.packages + "), or name the library in " + kind.variable;
    const auto named = environment_variable(kind.variable);
    std::string problem = kind.name + ", " + kind.purpose + ", was not found; " + hint;
    for (const std::string& path : candidates(kind)) {
        try {
            const int version = open(path);
            if (version / 1000 <= newest / 1000) return;
            problem = kind.name + " " + version_text(version) + " (" + path +
                      ") is newer than the driver, which is of CUDA " + version_text(newest) + "; " + hint;
        } catch (const std::runtime_error& error) {
            if (named && !named->empty())
                problem = std::string(kind.variable) + "=" + path + " is not " + kind.name + ": " + error.what();
        }
    }
    throw DeviceError(problem);
}

}  // namespace vkrnn::cuda

namespace vkrnn {

void set_cuda_packages(std::vector<std::string> folders) {
    const std::lock_guard lock(cuda::mutex);
    cuda::folders = std::move(folders);
}

}  // namespace vkrnn
