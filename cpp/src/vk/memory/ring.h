// A ring buffer of pinned host memory, for copies to and from memory that the host cannot map.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>

#include "vk/device/timeline.h"
#include "vk/memory/allocation.h"

namespace vkrnn::vk {

// Starts small, and grows when a large piece is requested.
class Ring {
public:
    // Memory is allocated when it is first needed. The timeline must outlive the ring.
    Ring(const Timeline& timeline, Use use) : timeline_(timeline), use_(use) {}

    static constexpr std::uint64_t kBytes = 128 << 20;
    static constexpr std::uint64_t kFirstBytes = 16 << 20;
    static constexpr std::uint64_t kPieces = 8;               // the ring has room for at least this many pieces
    static constexpr std::uint64_t kPart = kBytes / kPieces;  // the largest piece

    // Waits until the device is done with the next `bytes` and returns them. Throws vk::SystemError, and like
    // Timeline::wait.
    Slice reserve(std::uint64_t bytes, const Poll& poll);
    // Records that the device uses everything reserved since the last call up to the point.
    void use_until(Point point);

    [[nodiscard]] std::uint64_t held() const { return held_; }  // thread-safe

private:
    struct Used {
        std::uint64_t end;
        Point point;
    };

    void grow(std::uint64_t bytes);

    const Timeline& timeline_;
    Use use_;
    Allocation memory_, first_;  // the device may still use the first, small ring
    std::uint64_t bytes_ = 0;
    std::atomic<std::uint64_t> held_ = 0;
    std::deque<Used> used_;  // the oldest first
    // Positions only grow. Modulo bytes_ they are offsets into the memory.
    std::uint64_t at_ = 0, marked_ = 0, free_until_ = 0;
};

}  // namespace vkrnn::vk
