// The costs of the product strategies of GPUs.
#pragma once

namespace vkrnn {

struct ProductCosts {
    double least_flops;  // the fixed cost of a call's portable products, as operations that take as long
    double register_flops_per_us, tiled_flops_per_us;
    double matrix_call;                                // to prepare the operands for matrix units
    double matrix_flops_per_us, rounded_flops_per_us;  // with three half-precision products, and with one
    // The tiled kernel finishes products with fewer operations before operands for matrix units would be ready.
    double least_matrix_flops;
    double float64_factor;  // of the time of the portable kernels, relative to float32
    // Of cuBLASLt. A forward call begins with its product, so the device waits while the host prepares it.
    double library_forward, library_gradients;
    double library_flops_per_us;        // with TF32
    double half_library_flops_per_us;   // in 16-bit types
    double exact_library_flops_per_us;  // in float32 and float64
};

}  // namespace vkrnn
