// What OnCudaStream in vkrnn/cuda.h sets for calls of a thread: the stream that orders them, and what allocates their
// memory.
#pragma once

#include "cuda/libraries/driver.h"
#include "vkrnn/cuda.h"

namespace vkrnn::cuda {

inline constinit thread_local Stream current_stream = Stream::legacy;
inline constinit thread_local const CudaAllocator* current_allocator = nullptr;  // null is the device's own pool

}  // namespace vkrnn::cuda
