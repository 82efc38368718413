// Implements vkrnn/cuda.h: streams and memory that vkrnn shares with other libraries.
#include <utility>

#include "cuda/run/cuda_device.h"
#include "cuda/run/current_stream.h"
#include "vkrnn/cuda.h"
#include "vkrnn/error.h"

namespace vkrnn {
namespace {

cuda::CudaDevice& cuda_device(Device& device) {
    auto* const found = dynamic_cast<cuda::CudaDevice*>(&device);
    if (found == nullptr) throw DeviceError("expected a CUDA device, got " + device.profile().name);
    return *found;
}

}  // namespace

OnCudaStream::OnCudaStream(std::uintptr_t stream, CudaAllocator allocate)
    : stream_before_(static_cast<std::uintptr_t>(cuda::current_stream)),
      allocate_(std::move(allocate)),
      allocator_before_(cuda::current_allocator) {
    // 0 is the default stream of programs that do not say otherwise, the legacy one.
    cuda::current_stream = stream == 0 ? cuda::Stream::legacy : static_cast<cuda::Stream>(stream);
    cuda::current_allocator = allocate_ ? &allocate_ : nullptr;
}

OnCudaStream::~OnCudaStream() {
    cuda::current_stream = static_cast<cuda::Stream>(stream_before_);
    cuda::current_allocator = allocator_before_;
}

std::shared_ptr<Storage> borrow_cuda_memory(Device& device, std::uint64_t address, std::uint64_t bytes,
                                            std::function<void()> release) {
    return cuda_device(device).borrow(address, bytes, std::move(release));
}

std::uint64_t lend_cuda_memory(Device& device, Storage& storage, std::uintptr_t stream) {
    return cuda_device(device).lend(storage, stream == 0 ? cuda::Stream::legacy : static_cast<cuda::Stream>(stream));
}

void follow_cuda_stream(Device& device, std::uintptr_t stream) {
    cuda_device(device).follow(static_cast<cuda::Stream>(stream));
}

bool is_usable_cuda_device(Device& device) { return cuda_device(device).is_usable(); }

std::string cuda_compiler_key(Device& device) { return cuda_device(device).compiler_key(); }

int cuda_ordinal_at(std::uint64_t address) {
    try {
        int ordinal = -1;
        cuda::check(cuda::driver().PointerGetAttribute(&ordinal, cuda::PointerAttribute::device_ordinal, address));
        return ordinal;
    } catch (const cuda::DriverError&) {
        return -1;
    }
}

int cuda_ordinal(const Device& device) {
    const auto* const found = dynamic_cast<const cuda::CudaDevice*>(&device);
    return found == nullptr ? -1 : found->ordinal();
}

}  // namespace vkrnn
