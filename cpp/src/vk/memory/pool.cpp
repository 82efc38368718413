#include "vk/memory/pool.h"

#include <algorithm>
#include <bit>

namespace vkrnn::vk {
namespace {

// Pieces up to kSmall have sizes that are powers of two. Many of them share an allocation, because drivers limit the
// number of allocations.
constexpr std::uint64_t kSmall = 64 << 10;
constexpr std::uint64_t kSlab = 1 << 20;

bool is_small(std::uint64_t bytes) { return bytes <= kSmall; }
std::uint64_t small_size(std::uint64_t bytes) { return std::bit_ceil(std::max(bytes, kAlignment)); }

// Sizes of large pieces are rounded up a little, so that slowly growing arrays find a piece that fits.
std::uint64_t large_size(std::uint64_t bytes) { return align(bytes, std::bit_floor(bytes) / 8); }

}  // namespace

// Finds the first piece of the right size; with `idle`, the first that the device is done with.
Pool::Pieces::const_iterator Pool::find(const Pieces& pieces, std::uint64_t bytes, bool idle) const {
    const auto fits = [&](const Piece& piece) {
        const std::uint64_t size = piece.slice.bytes;
        return size >= bytes && (is_small(size) || size - bytes <= bytes / 4);
    };
    const Point reached = idle ? timeline_->reached().value_or(timeline_->submitted()) : ~Point{0};
    return std::find_if(pieces.begin(), pieces.end(),
                        [&](const Piece& piece) { return fits(piece) && piece.last_use <= reached; });
}

Pool::Pieces Pool::take(std::uint64_t bytes, bool idle) {
    const std::lock_guard lock(mutex_);
    const bool small = is_small(bytes);
    Pieces& pieces = small ? small_free_[small_size(bytes)] : large_free_;
    auto found = find(pieces, bytes, idle);
    if (found == pieces.end()) {
        const auto add = [&] { small ? add_slab(pieces, small_size(bytes)) : add_large(bytes); };
        try {
            add();
        } catch (const ::vk::OutOfDeviceMemoryError&) {
            release_unused_locked();
            add();
        } catch (const ::vk::OutOfHostMemoryError&) {  // if the device shares the host's memory
            release_unused_locked();
            add();
        }
        found = find(pieces, bytes, idle);
    }
    Pieces lease;
    lease.splice(lease.begin(), pieces, found);
    if (!small) {
        kept_ -= lease.front().slice.bytes;
        used_ += lease.front().slice.bytes;
        most_used_ = std::max(most_used_, used_);
    }
    return lease;
}

void Pool::add_slab(Pieces& pieces, std::uint64_t size) {
    std::list<Allocation> slab;
    slab.push_back(allocate(*timeline_->device(), use_, kSlab));
    Pieces fresh;
    for (std::uint64_t at = 0; at < kSlab; at += size) {
        fresh.push_back({slab.front().whole.part(at, size), {}});
    }
    slabs_.splice(slabs_.end(), slab);
    pieces.splice(pieces.end(), fresh);
    held_ += kSlab;
}

void Pool::add_large(std::uint64_t bytes) {
    const LogicalDevice& device = *timeline_->device();
    const std::uint64_t size = std::max(bytes, std::min(large_size(bytes), device.profile().max_allocation));
    std::list<Allocation> own;
    own.push_back(allocate(device, use_, size));
    large_free_.push_back({own.front().whole, own.begin()});
    large_.splice(large_.end(), own);
    held_ += size;
    kept_ += size;
}

void Pool::drop(Pieces::iterator piece) {
    kept_ -= piece->slice.bytes;
    held_ -= piece->slice.bytes;
    large_.erase(piece->own);
    large_free_.erase(piece);
}

void Pool::give_back(Pieces lease, Point last_use) noexcept {
    if (lease.empty()) {
        return;
    }
    const std::lock_guard lock(mutex_);
    while (!lease.empty()) {
        Piece& piece = lease.front();
        piece.last_use = last_use;
        piece.returned = ++returns_;
        const std::uint64_t bytes = piece.slice.bytes;
        Pieces& pieces = is_small(bytes) ? small_free_.find(bytes)->second : large_free_;
        const auto later = std::find_if(pieces.begin(), pieces.end(), [&](const Piece& other) {
            return std::pair(piece.slice.allocation, piece.slice.offset) <
                   std::pair(other.slice.allocation, other.slice.offset);
        });
        pieces.splice(later, lease, lease.begin());
        if (!is_small(bytes)) {
            used_ -= bytes;
            kept_ += bytes;
        }
    }
    if (kept_ > most_used_) {
        const Point reached = timeline_->reached().value_or(last_use);
        while (kept_ > most_used_) {
            const auto oldest =
                std::min_element(large_free_.begin(), large_free_.end(),
                                 [](const Piece& a, const Piece& b) { return a.returned < b.returned; });
            if (oldest->last_use > reached) {
                break;
            }
            drop(oldest);
        }
    }
}

void Pool::release_unused() noexcept {
    const std::lock_guard lock(mutex_);
    release_unused_locked();
}

void Pool::release_unused_locked() noexcept {
    timeline_->settle(timeline_->submitted());
    while (!large_free_.empty()) {
        drop(large_free_.begin());
    }
}

std::uint64_t Pool::unused() const {
    const std::lock_guard lock(mutex_);
    return kept_;
}

std::uint64_t Pool::held() const {
    const std::lock_guard lock(mutex_);
    return held_;
}

}  // namespace vkrnn::vk
