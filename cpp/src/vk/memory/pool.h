// Memory for arrays and transfers: pieces that are handed out, given back, and handed out again.
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
        std::list<Allocation>::iterator own;  // of a large piece: its allocation
        Point last_use = 0;
        std::uint64_t returned = 0;  // the number of the give_back that brought it
    };
    // A list, so that pieces go from hand to hand without allocating; take() leases one at a time.
    using Pieces = std::list<Piece>;

    // A piece of `bytes`, contents undefined. The device may still be busy with what was there before: whatever is
    // submitted from now on comes after that. Where the host is to write, `idle` is a piece that the device is done
    // with. Of several pieces it is the same one every time, so that calls that come again find their memory where it
    // was. Throws vk::SystemError and std::bad_alloc, after giving back to the driver what nobody uses.
    Pieces take(std::uint64_t bytes, bool idle);

    // Keeps the pieces for the next take(). `last_use` is when the device is done with them. As many bytes are kept as
    // were ever in use at a time; beyond that the pieces given back first go to the driver.
    void give_back(Pieces lease, Point last_use) noexcept;

    // Gives to the driver what nobody has, waiting for the device.
    void release_unused() noexcept;

    // Bytes held of the driver; and those of them that nobody has.
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
    std::map<std::uint64_t, Pieces> small_free_;  // by size; in each as they were allocated
    Pieces large_free_;
    std::uint64_t returns_ = 0;
    std::uint64_t held_ = 0, used_ = 0, most_used_ = 0, kept_ = 0;  // bytes; all but the first of large pieces
};

}  // namespace vkrnn::vk
