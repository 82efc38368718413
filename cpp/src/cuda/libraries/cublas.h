// cuBLASLt, NVIDIA's library of matrix products, opened at run time. The types and numbers are those of cublasLt.h,
// cublas_api.h and library_types.h, which the build does not need.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "cuda/libraries/driver.h"

namespace vkrnn::cuda::cublas {

// Types of these headers, with their names there but without cublasLt. Handles are opaque pointers there.
using Status = int;
enum class Handle : std::uintptr_t {};
enum class MatmulDesc : std::uintptr_t {};
enum class MatrixLayout : std::uintptr_t {};
enum class Preference : std::uintptr_t {};

inline constexpr Status kSuccess = 0, kAllocationFailed = 3;

enum class DataType : int { float32 = 0, float64 = 1, float16 = 2, bfloat16 = 14 };
enum class ComputeType : int { float32 = 68, float64 = 70, tf32 = 77 };
enum class Operation : int { none = 0, transpose = 1 };
enum class DescAttribute : int { transpose_a = 3, transpose_b = 4 };
enum class LayoutAttribute : int { batches = 5, batch_stride = 6 };
enum class PreferenceAttribute : int {
    workspace_bytes = 1,
    reductions = 3,
    alignment_a = 5,
    alignment_b = 6,
    alignment_c = 7,
    alignment_d = 8,
};
enum class AlgorithmAttribute : int { reduction = 3 };
// How the parts of a sum that is split along k are added up.
enum class Reduction : std::uint32_t {
    none = 0,          // the sum is not split
    compute_type = 2,  // the parts are in the workspace, and a kernel of its own adds them in order
};

struct Algorithm {
    std::uint64_t data[8];
};

struct HeuristicResult {
    Algorithm algorithm;
    std::size_t workspace_bytes;
    Status state;
    float waves;
    int reserved[4];
};

// The library's functions that vkrnn uses. cublas.cpp has their full names, with the prefix cublasLt.
struct Functions {
    std::size_t (*GetCudartVersion)();
    const char* (*GetStatusName)(Status status);
    const char* (*GetStatusString)(Status status);
    Status (*Create)(Handle* handle);
    Status (*Destroy)(Handle handle);
    Status (*MatmulDescCreate)(MatmulDesc* made, ComputeType compute, DataType scale);
    Status (*MatmulDescDestroy)(MatmulDesc desc);
    Status (*MatmulDescSetAttribute)(MatmulDesc desc, DescAttribute attribute, const void* value, std::size_t bytes);
    Status (*MatrixLayoutCreate)(MatrixLayout* made, DataType type, std::uint64_t rows, std::uint64_t columns,
                                 std::int64_t ld);
    Status (*MatrixLayoutDestroy)(MatrixLayout layout);
    Status (*MatrixLayoutSetAttribute)(MatrixLayout layout, LayoutAttribute attribute, const void* value,
                                       std::size_t bytes);
    Status (*MatmulPreferenceCreate)(Preference* made);
    Status (*MatmulPreferenceDestroy)(Preference preference);
    Status (*MatmulPreferenceSetAttribute)(Preference preference, PreferenceAttribute attribute, const void* value,
                                           std::size_t bytes);
    Status (*MatmulAlgoGetHeuristic)(Handle handle, MatmulDesc desc, MatrixLayout a, MatrixLayout b, MatrixLayout c,
                                     MatrixLayout d, Preference preference, int wanted, HeuristicResult* results,
                                     int* found);
    Status (*MatmulAlgoCheck)(Handle handle, MatmulDesc desc, MatrixLayout a, MatrixLayout b, MatrixLayout c,
                              MatrixLayout d, const Algorithm* algorithm, HeuristicResult* result);
    Status (*MatmulAlgoConfigGetAttribute)(const Algorithm* algorithm, AlgorithmAttribute attribute, void* value,
                                           std::size_t bytes, std::size_t* written);
    Status (*Matmul)(Handle handle, MatmulDesc desc, const void* alpha, Address a, MatrixLayout a_layout, Address b,
                     MatrixLayout b_layout, const void* beta, Address c, MatrixLayout c_layout, Address d,
                     MatrixLayout d_layout, const Algorithm* algorithm, Address workspace, std::size_t workspace_bytes,
                     Stream stream);
};

// Returns the library's functions. It is opened once per process. Throws DeviceError if there is no cuBLASLt, or only
// one that is newer than the driver; the message says what to install.
const Functions& functions();

// Throws LibraryError if a function did not succeed; DriverError if memory ran out.
void check(Status status);

// Owns a descriptor of the library.
template <class Descriptor>
class Owned {
public:
    template <class... Parameters>
    Owned(Status (*create)(Descriptor*, Parameters...), Status (*destroy)(Descriptor),
          std::type_identity_t<Parameters>... parameters)
        : destroy_(destroy) {
        check(create(&descriptor_, parameters...));
    }
    ~Owned() { destroy_(descriptor_); }
    Owned(const Owned&) = delete;
    Owned& operator=(const Owned&) = delete;

    [[nodiscard]] Descriptor get() const { return descriptor_; }

    template <class Attribute, class Value>
    void set(Status (*setter)(Descriptor, Attribute, const void*, std::size_t),
             std::type_identity_t<Attribute> attribute, const Value& value) const {
        check(setter(descriptor_, attribute, &value, sizeof value));
    }

private:
    Descriptor descriptor_{};
    Status (*destroy_)(Descriptor);
};

// Returns why there is no library, and what to install; empty if there is one. Opens it.
std::string problem();

}  // namespace vkrnn::cuda::cublas
