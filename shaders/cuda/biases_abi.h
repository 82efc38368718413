// What C++ and the kernel add_biases share. See common/abi.h.
#ifndef VKRNN_BIASES_ABI_H
#define VKRNN_BIASES_ABI_H
#include "common/abi.h"

#ifdef __cplusplus
namespace vkrnn::abi {
#endif

// out_[i] = first[i] + second[i] for i < added, and first[i] for the other i < count.
// Tensors 0, 1, 2 are first, second, out_. Workgroups: x counts groups of elements, one element per invocation.
struct AddBiasesPush {
    Address first, second, out_;
    uint count, added;
};

#ifdef __cplusplus
}  // namespace vkrnn::abi
#endif
#endif
