// Device memory that calls compute in. It is handed out anew for every call and kept between calls.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "vk/memory/allocation.h"

namespace vkrnn::vk {

class Arena {
public:
    explicit Arena(const LogicalDevice& device) : device_(device) {}

    // Returns whether pieces of these sizes fit into the memory that the arena holds.
    [[nodiscard]] bool fits(std::span<const std::uint64_t> sizes) const;

    // Places pieces of these sizes, contents undefined, and invalidates all earlier slices. If the pieces do not fit,
    // new blocks replace the old ones, and the device must be done with the earlier slices: one block, or several if
    // one allocation cannot be that large. So the arena is as large as the largest call was, however many calls there
    // are. No size may exceed the profile's max_allocation. Throws vk::SystemError and holds nothing then.
    void place(std::span<const std::uint64_t> sizes, std::vector<Slice>& slices);

    // Returns all memory to the driver, which invalidates all slices.
    void release() {
        blocks_.clear();
        held_ = 0;
    }

    [[nodiscard]] std::uint64_t held() const { return held_; }  // thread-safe

private:
    struct Spot {
        std::size_t block;
        std::uint64_t offset;
    };

    [[nodiscard]] bool pack(std::span<const std::uint64_t> sizes, std::vector<Spot>* spots) const;
    void grow(std::span<const std::uint64_t> sizes);

    const LogicalDevice& device_;
    std::vector<Allocation> blocks_;
    std::atomic<std::uint64_t> held_ = 0;
    std::vector<Spot> spots_;
};

// Returns the bytes that pieces of these sizes take together; saturates.
std::uint64_t packed_bytes(std::span<const std::uint64_t> sizes);

}  // namespace vkrnn::vk
