// CUDA devices: what their callers can say beyond the interface of all devices.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "vkrnn/device.h"

namespace vkrnn {

// Sets the folders whose packages may contain NVRTC, such as `nvidia` among Python's packages: <folder>/*/lib.
void set_cuda_packages(std::vector<std::string> folders);

// The alignment in bytes of CUDA memory that suffices for every kernel.
inline constexpr std::uint64_t kCudaAlignment = 256;

// Returns the address of this many bytes of a CUDA device's memory, aligned; 0 if there is not enough. They belong to a
// call until it returns. Later uses must be ordered on the call's stream.
using CudaAllocator = std::function<std::uint64_t(std::uint64_t bytes)>;

// As long as the object exists, calls of this thread on CUDA devices are ordered on its stream, a CUstream, and take
// their temporary memory from `allocate`. Other calls take it from the device's pool, and are ordered on the legacy
// default stream, which waits for all streams except non-blocking ones. Destroy the objects of a thread in reverse
// order.
class OnCudaStream {
public:
    explicit OnCudaStream(std::uintptr_t stream, CudaAllocator allocate = {});
    ~OnCudaStream();
    OnCudaStream(const OnCudaStream&) = delete;
    OnCudaStream& operator=(const OnCudaStream&) = delete;

private:
    const std::uintptr_t stream_before_;
    const CudaAllocator allocate_;
    const CudaAllocator* const allocator_before_;
};

// Returns a storage for memory of a CUDA device that another library owns. `release` is called when neither the
// caller nor the device uses it any more. The storage has no version, so prepacked copies of it are not kept. Throws
// DeviceError if the device is not a CUDA device.
std::shared_ptr<Storage> borrow_cuda_memory(Device& device, std::uint64_t address, std::uint64_t bytes,
                                            std::function<void()> release);

// Returns the address of a CUDA device's memory, and makes `stream` wait for the calls that use it. From then
// on, prepacked copies of the storage are not kept, because the other library may change the contents. Throws
// DeviceError if the storage is not on a CUDA device.
std::uint64_t lend_cuda_memory(Device& device, Storage& storage, std::uintptr_t stream);

// Makes the stream of this thread's calls wait for what was submitted to another stream.
void follow_cuda_stream(Device& device, std::uintptr_t stream);

// Returns the number of the CUDA device whose memory is at an address; -1 if there is none.
int cuda_ordinal_at(std::uint64_t address);

// Returns what the code of a CUDA device's kernels depends on: compiler, architecture and sources. It can be part of a
// file's name. Throws DeviceError if the device is not a CUDA device, or was closed.
std::string cuda_compiler_key(Device& device);

// Returns whether calls on a CUDA device can still work: it was neither closed nor lost, nor opened before a fork.
bool is_usable_cuda_device(Device& device);

// Returns the number of a CUDA device among those of the driver, as in "cuda:0"; -1 for other devices.
int cuda_ordinal(const Device& device);

}  // namespace vkrnn
