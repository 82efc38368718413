// Device memory that is handed out anew for every call and kept between calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "device.h"
#include "vulkan.h"

namespace vkrnn::vk {

// A piece of a buffer. Valid until the arena it came from places something else or releases its memory.
struct Slice {
    Buffer buffer;
    std::uint64_t offset = 0;  // bytes into the buffer, a multiple of 256
    std::uint64_t bytes = 0;
    std::uint64_t address = 0;  // device address of the slice itself; 0 where the arena's buffers have none
    std::byte* host = nullptr;  // where the host sees the slice; null where it does not
};

class Arena {
public:
    struct Kind {
        std::uint32_t memory_type = 0;
        BufferUsageFlags usage;
        bool mapped = false;  // the memory type is host-visible and coherent
    };

    Arena(const LogicalDevice& device, const Kind& kind);

    // Whether pieces of these sizes fit into what the arena holds.
    [[nodiscard]] bool fits(std::span<const std::uint64_t> sizes) const;

    // Places pieces of these sizes from the beginning; earlier slices are void, and the device must be done with them.
    // Contents are undefined. What does not fit into the blocks held replaces them all, by one block unless that were
    // larger than one allocation may be: so the arena is as large as the largest call was, however many calls there
    // are. No size may exceed the profile's max_allocation. Throws vk::SystemError, holding nothing then.
    void place(std::span<const std::uint64_t> sizes, std::vector<Slice>& slices);

    // Gives all memory back; slices are void.
    void release() { blocks_.clear(); }

    [[nodiscard]] std::uint64_t held() const;

private:
    struct Block {
        raii::DeviceMemory memory = nullptr;  // before the buffer: destroyed after it
        raii::Buffer buffer = nullptr;
        std::uint64_t bytes = 0;
        std::uint64_t address = 0;
        std::byte* host = nullptr;
    };
    struct Spot {
        std::size_t block;
        std::uint64_t offset;
    };

    [[nodiscard]] bool pack(std::span<const std::uint64_t> sizes, std::vector<Spot>* spots) const;
    void grow(std::span<const std::uint64_t> sizes);
    [[nodiscard]] Block allocate(std::uint64_t bytes) const;

    const LogicalDevice& device_;
    Kind kind_;
    std::vector<Block> blocks_;
    std::vector<Spot> spots_;
};

// Bytes that pieces of these sizes take together; saturates.
std::uint64_t packed_bytes(std::span<const std::uint64_t> sizes);

}  // namespace vkrnn::vk
