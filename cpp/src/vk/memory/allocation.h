// Allocates device memory, with one buffer that covers all of it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "vk/device/logical_device.h"
#include "vk/device/vulkan.h"

namespace vkrnn::vk {

// The purpose of memory, which determines the memory type.
enum class Use : std::uint8_t {
    device,    // kernels read and write it; host-visible if the device's memory is unified
    upload,    // the host writes it and the device copies from it
    download,  // the device copies to it and the host reads it
    reports,   // kernels write it and the host reads it
};

// A piece of a buffer, valid as long as the memory of the buffer.
struct Slice {
    Buffer buffer;
    std::uint64_t offset = 0;  // bytes into the buffer
    std::uint64_t bytes = 0;
    std::uint64_t address = 0;     // device address of the slice itself; 0 if the buffer has none
    std::byte* host = nullptr;     // where the host has mapped the slice; null if it has not
    std::uint64_t allocation = 0;  // number of the allocation; 0 for imported memory

    [[nodiscard]] Slice part(std::uint64_t from, std::uint64_t length) const {
        return {buffer,
                offset + from,
                length,
                address == 0 ? 0 : address + from,
                host == nullptr ? nullptr : host + from,
                allocation};
    }
};

struct Allocation {
    raii::DeviceMemory memory = nullptr;  // declared first, so that it is destroyed after the buffer
    raii::Buffer buffer = nullptr;
    Slice whole;
};

constexpr std::uint64_t kAlignment = 256;  // alignment of every piece of memory handed out

constexpr std::uint64_t align(std::uint64_t bytes, std::uint64_t alignment) {
    return (bytes + alignment - 1) / alignment * alignment;
}

// Returns the size of an aligned piece for `bytes`. An empty piece still has its own address.
constexpr std::uint64_t aligned_piece(std::uint64_t bytes) { return align(bytes == 0 ? 1 : bytes, kAlignment); }

[[nodiscard]] bool is_aligned(const void* data, std::uint64_t alignment);

// Allocates memory, and maps it if the host can. Throws vk::SystemError.
Allocation allocate(const LogicalDevice& device, Use use, std::uint64_t bytes);

// Lets the device read host memory in place. The memory must stay valid as long as the allocation lives. Whole pages
// are imported, and the process may still use the rest of the first and last page. The device must have a
// host_import_alignment(). Throws vk::SystemError if the driver refuses.
Allocation import_host(const LogicalDevice& device, const void* data, std::uint64_t bytes);

}  // namespace vkrnn::vk
