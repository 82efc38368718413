// A pool of device memory for arrays and transfers, which reuses returned pieces.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "vk/device/timeline.h"
#include "vk/memory/allocation.h"

namespace vkrnn::vk {

// Thread-safe.
class Pool {
public:
    Pool(std::shared_ptr<const Timeline> timeline, Use use) : timeline_(std::move(timeline)), use_(use) {}

    struct Piece {
        Slice slice;
        std::list<Allocation>::iterator own;  // the allocation of a large piece
        Point last_use = 0;
        std::uint64_t returned = 0;  // when it was returned: a number that grows with each returned piece
    };
    // Lists, because pieces then move between them without allocating memory. take() leases one piece at a time.
    using Pieces = std::list<Piece>;

    // Leases a piece of at least `bytes` with undefined contents. The device may still use it for earlier commands;
    // later submissions wait for these. With `idle` it does not, so the host may write at once. The choice among pieces
    // is deterministic, so that repeated calls find their memory in the same place. Throws vk::SystemError and
    // std::bad_alloc, but only after unused memory was returned to the driver.
    Pieces take(std::uint64_t bytes, bool idle);

    // Returns pieces to the pool. The device is done with them at `last_use`. The pool keeps at most as many bytes as
    // were ever in use at once. Beyond that, it returns the pieces given back first to the driver.
    void give_back(Pieces lease, Point last_use) noexcept;

    // Waits for the device and returns all unused memory to the driver.
    void release_unused() noexcept;

    // Return the bytes allocated from the driver, and the unused ones among them.
    [[nodiscard]] std::uint64_t held() const;
    [[nodiscard]] std::uint64_t unused() const;

    [[nodiscard]] const Timeline& timeline() const { return *timeline_; }

private:
    [[nodiscard]] Pieces::const_iterator find(const Pieces& pieces, std::uint64_t bytes, bool idle) const;
    void add_slab(Pieces& pieces, std::uint64_t size);
    void add_large(std::uint64_t bytes);
    void drop(Pieces::iterator piece);
    void release_unused_locked() noexcept;

    std::shared_ptr<const Timeline> timeline_;
    Use use_;
    mutable std::mutex mutex_;
    std::list<Allocation> slabs_, large_;
    std::map<std::uint64_t, Pieces> small_free_;  // by size, each list in order of allocation
    Pieces large_free_;
    std::uint64_t returns_ = 0;
    std::uint64_t held_ = 0, used_ = 0, most_used_ = 0, kept_ = 0;  // bytes; all but held_ count large pieces only
};

}  // namespace vkrnn::vk
