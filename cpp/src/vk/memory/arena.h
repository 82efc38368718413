// Device memory for the scratch buffers of calls. It is kept between calls, and every call may use all of it.
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

    // Places pieces of these sizes, with undefined contents, and invalidates all earlier slices. If the pieces do not
    // fit, new blocks replace the old ones: one block, or several if one allocation cannot be that large. The device
    // must then be done with the earlier slices. So the arena is as large as the largest call so far, however many
    // calls there are. No size may exceed the profile's max_allocation. Throws vk::SystemError, and then holds nothing.
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

    [[nodiscard]] bool find_spots(std::span<const std::uint64_t> sizes, std::vector<Spot>* spots) const;
    void grow(std::span<const std::uint64_t> sizes);

    const LogicalDevice& device_;
    std::vector<Allocation> blocks_;
    std::atomic<std::uint64_t> held_ = 0;
    std::vector<Spot> spots_;
};

// Returns the total size of pieces of these sizes; saturates.
std::uint64_t placed_bytes(std::span<const std::uint64_t> sizes);

}  // namespace vkrnn::vk
