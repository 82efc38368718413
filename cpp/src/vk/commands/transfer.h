// Copies between the host's memory and memory that the host cannot map, through rings of pinned memory: the processor
// copies one part while the device copies another.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "vk/commands/stream.h"
#include "vk/memory/allocation.h"
#include "vk/memory/workers.h"

namespace vkrnn::vk {

// Pinned memory that is used round and round: little of it until a large piece is asked for.
class Ring {
public:
    // The memory is allocated when it is first needed. The timeline must outlive the ring.
    Ring(const Timeline& timeline, Use use) : timeline_(timeline), use_(use) {}

    static constexpr std::uint64_t kBytes = 128 << 20;
    static constexpr std::uint64_t kFirstBytes = 16 << 20;
    static constexpr std::uint64_t kPieces = 8;               // that there is room for, at least
    static constexpr std::uint64_t kPart = kBytes / kPieces;  // at most, in one piece

    // The next `bytes`, once the device is done with them. Throws vk::SystemError and like Timeline::wait.
    Slice reserve(std::uint64_t bytes, const Poll& poll);
    // The device uses what was reserved since the last call up to the point.
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
    Allocation memory_, first_;  // the first one may still be in use
    std::uint64_t bytes_ = 0;
    std::atomic<std::uint64_t> held_ = 0;
    std::deque<Used> used_;  // the oldest first
    std::uint64_t at_ = 0, marked_ = 0,
                  free_until_ = 0;  // positions that only grow; modulo bytes_ they are places in the memory
};

class Transfer {
public:
    // All must outlive the transfer.
    Transfer(Timeline& timeline, Stream& stream, Workers& workers)
        : timeline_(timeline),
          stream_(stream),
          workers_(workers),
          up_(timeline, Use::upload),
          down_(timeline, Use::download) {}

    // Copies from the host; records into the stream's command buffer, which it opens where none is, and submits now and
    // then for a new one.
    // The last part is in the command buffer that is open afterwards: call submitted() for it. Throws like
    // Ring::reserve.
    void upload(const Slice& to, const void* from, const Poll& poll);
    void submitted(Point point);

    // Copies to the host and returns when that is done. No command buffer may be open. Throws like Ring::reserve.
    void download(void* to, const Slice& from, const Poll& poll);

    [[nodiscard]] std::uint64_t held() const { return up_.held() + down_.held(); }

private:
    Timeline& timeline_;
    Stream& stream_;
    Workers& workers_;
    Ring up_, down_;
    std::uint64_t recorded_ = 0;  // bytes of uploads in the open command buffer
};

}  // namespace vkrnn::vk
