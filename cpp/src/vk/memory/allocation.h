// Device memory with the one buffer that covers it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "vk/device/logical_device.h"
#include "vk/device/vulkan.h"

namespace vkrnn::vk {

// What memory is for decides where it is.
enum class Use : std::uint8_t {
    device,    // what kernels read and write; host-visible where the device's memory is unified
    upload,    // what the host writes and the device copies from
    download,  // what the device copies to and the host reads
};

// A piece of a buffer. Valid as long as the memory it is a piece of.
struct Slice {
    Buffer buffer;
    std::uint64_t offset = 0;  // bytes into the buffer
    std::uint64_t bytes = 0;
    std::uint64_t address = 0;     // device address of the slice itself; 0 where the buffer has none
    std::byte* host = nullptr;     // where the host sees the slice; null where it does not
    std::uint64_t allocation = 0;  // the number of the allocation that it is a piece of; 0 for imported memory

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
    raii::DeviceMemory memory = nullptr;  // before the buffer: destroyed after it
    raii::Buffer buffer = nullptr;
    Slice whole;
};

constexpr std::uint64_t kAlignment = 256;  // of every piece of memory handed out

constexpr std::uint64_t align(std::uint64_t bytes, std::uint64_t alignment) {
    return (bytes + alignment - 1) / alignment * alignment;
}

// Bytes that `bytes` take where everything is aligned: an empty piece still has an address of its own.
constexpr std::uint64_t aligned_piece(std::uint64_t bytes) { return align(bytes == 0 ? 1 : bytes, kAlignment); }

[[nodiscard]] bool is_aligned(const void* data, std::uint64_t alignment);

// Mapped, where the host can map it. Throws vk::SystemError.
Allocation allocate(const LogicalDevice& device, Use use, std::uint64_t bytes);

// The host's memory as the device's, for reading; it must stay where it is as long as the allocation lives. Whole pages
// are imported: those around the ends belong to the process as well. Throws vk::SystemError where the driver refuses;
// only for devices that import at all.
Allocation import_host(const LogicalDevice& device, const void* data, std::uint64_t bytes);

}  // namespace vkrnn::vk
