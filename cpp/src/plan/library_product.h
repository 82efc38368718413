// A matrix product that a library of the back end computes. In a plan it is a Dispatch of the kernel kLibraryProduct,
// whose push constants are a LibraryProduct and whose workgroups are zeros.
#pragma once

#include <cstdint>
#include <string_view>

#include "vkrnn/plan.h"

namespace vkrnn {

inline constexpr std::string_view kLibraryProduct = "cublas_product";

// Returns whether a kernel is a product of the library. Others are shaders.
inline bool is_library_product(const Kernel& kernel) { return kernel.shader.starts_with(kLibraryProduct); }

// The numbers of the kernel's constants.
enum LibraryConstant : std::uint32_t {
    kAColumns,        // whether element (i, k) of A is at k * ld + i instead of i * ld + k
    kBColumns,        // the same of B
    kOperandDtype,    // of A and B
    kResultDtype,     // of C
    kRoundsOperands,  // whether float32 operands are rounded to TF32's ten bits of mantissa
    kLibraryConstants,
};

// C(m, n) = sum over k of A(m, k) B(n, k), for each of `batches`. C is stored by rows. Leading dimensions and the
// strides of batches are in elements. Everything except the buffer references determines the library's algorithm.
struct LibraryProduct {
    BufferReference a, b, c, workspace;
    std::int64_t m, n, k, batches;
    std::int64_t a_ld, b_ld, c_ld;
    std::int64_t a_batch, b_batch, c_batch;
    std::uint32_t a_alignment, b_alignment, c_alignment;  // bytes
    std::uint32_t workspace_bytes;
    std::int64_t whole_m;  // the m for which the algorithm is chosen: that of the product of which this is a part
};

// The workspace that NVIDIA recommends for its GPUs since Hopper.
inline constexpr std::uint32_t kLibraryWorkspace = 32U << 20;

}  // namespace vkrnn
