// What calls compute in: device memory that is handed out anew for every call and kept between calls.
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

    // Whether pieces of these sizes fit into what the arena holds.
    [[nodiscard]] bool fits(std::span<const std::uint64_t> sizes) const;

    // Places pieces of these sizes from the beginning; earlier slices are void. Contents are undefined. Where fits()
    // says no, the device must be done with the earlier slices: what does not fit into the blocks held replaces them
    // all, by one block unless that were larger than one allocation may be. So the arena is as large as the largest
    // call was, however many calls there are. No size may exceed the profile's max_allocation. Throws vk::SystemError,
    // holding nothing then.
    void place(std::span<const std::uint64_t> sizes, std::vector<Slice>& slices);

    // Gives all memory back; slices are void.
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

// Bytes that pieces of these sizes take together; saturates.
std::uint64_t packed_bytes(std::span<const std::uint64_t> sizes);

}  // namespace vkrnn::vk
