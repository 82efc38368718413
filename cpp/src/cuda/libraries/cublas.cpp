#include "cuda/libraries/cublas.h"

#include <atomic>
#include <mutex>
#include <stdexcept>
#include <type_traits>

#include "cuda/libraries/library.h"
#include "vkrnn/error.h"

namespace vkrnn::cuda::cublas {
namespace {

const LibraryKind& kind() {
    static const LibraryKind& cublas = *new LibraryKind{
        // NOLINT(cppcoreguidelines-owning-memory)
        .name = "cuBLASLt",
        .purpose = "which computes products",
        .variable = "VKRNN_CUBLASLT",
        .packages = "pip install nvidia-cublas for a driver of CUDA 13, nvidia-cublas-cu12 for one of CUDA 12",
        .files = system::kIsWindows ? std::vector<std::string>{"cublasLt64_13.dll", "cublasLt64_12.dll"}
                                    : std::vector<std::string>{"libcublasLt.so.13", "libcublasLt.so.12"},
        .is_it = [](const std::string& file) {
            return system::kIsWindows ? file.starts_with("cublasLt64_") && file.ends_with(".dll")
                                      : file.starts_with("libcublasLt.so");
        }};
    return cublas;
}

Functions load(const std::string& path) {
    void* const library = system::open_library(path);
    if (library == nullptr) throw std::runtime_error("it cannot be loaded");
    const auto find = [&](auto& function, const char* name) {
        using Type = std::remove_pointer_t<std::remove_reference_t<decltype(function)>>;
        function = require_function<Type>(library, name);
    };
    Functions all{};
    find(all.GetCudartVersion, "cublasLtGetCudartVersion");
    find(all.GetStatusName, "cublasLtGetStatusName");
    find(all.GetStatusString, "cublasLtGetStatusString");
    find(all.Create, "cublasLtCreate");
    find(all.Destroy, "cublasLtDestroy");
    find(all.MatmulDescCreate, "cublasLtMatmulDescCreate");
    find(all.MatmulDescDestroy, "cublasLtMatmulDescDestroy");
    find(all.MatmulDescSetAttribute, "cublasLtMatmulDescSetAttribute");
    find(all.MatrixLayoutCreate, "cublasLtMatrixLayoutCreate");
    find(all.MatrixLayoutDestroy, "cublasLtMatrixLayoutDestroy");
    find(all.MatrixLayoutSetAttribute, "cublasLtMatrixLayoutSetAttribute");
    find(all.MatmulPreferenceCreate, "cublasLtMatmulPreferenceCreate");
    find(all.MatmulPreferenceDestroy, "cublasLtMatmulPreferenceDestroy");
    find(all.MatmulPreferenceSetAttribute, "cublasLtMatmulPreferenceSetAttribute");
    find(all.MatmulAlgoGetHeuristic, "cublasLtMatmulAlgoGetHeuristic");
    find(all.MatmulAlgoCheck, "cublasLtMatmulAlgoCheck");
    find(all.MatmulAlgoConfigGetAttribute, "cublasLtMatmulAlgoConfigGetAttribute");
    find(all.Matmul, "cublasLtMatmul");
    return all;
}

}  // namespace

const Functions& functions() {
    static std::atomic<const Functions*> found;  // so that callers may hold another mutex once it is set
    if (const Functions* const all = found) return *all;
    const std::lock_guard lock(libraries_mutex());
    Functions loaded{};
    find_library(kind(), [&](const std::string& path) {
        loaded = load(path);
        return static_cast<int>(loaded.GetCudartVersion());
    });
    if (found == nullptr) found = new Functions(loaded);  // NOLINT(cppcoreguidelines-owning-memory): never closed
    return *found;
}

void check(Status status) {
    if (status == kSuccess) return;
    if (status == kAllocationFailed) throw DriverError{kOutOfMemory, "cuBLASLt is out of memory"};
    const Functions& all = functions();
    throw LibraryError{std::string("cuBLASLt reported ") + all.GetStatusName(status) + ": " +
                       all.GetStatusString(status)};
}

std::string problem() {
    try {
        functions();
        return {};
    } catch (const DeviceError& error) {
        return error.what();
    }
}

}  // namespace vkrnn::cuda::cublas
