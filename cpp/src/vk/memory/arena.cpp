#include "vk/memory/arena.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace vkrnn::vk {
namespace {

constexpr std::uint64_t kSmallestBlock = 64 << 10;
// Blocks up to this size are rounded up, so that slightly growing calls do not allocate each time.
constexpr std::uint64_t kLargestRoundedBlock = 256 << 20;

std::uint64_t rounded_block(std::uint64_t bytes, std::uint64_t limit) {
    std::uint64_t rounded = std::max(bytes, kSmallestBlock);
    if (rounded <= kLargestRoundedBlock) {
        rounded = align(rounded, std::bit_floor(rounded) / 8);
    }
    return std::max(bytes, std::min(rounded, limit));
}

// Places pieces, first fit, into blocks with this much room. Calls `visit` with each piece's block. Returns false if
// a piece fits nowhere.
template <class Visit>
bool first_fit(std::span<const std::uint64_t> sizes, std::vector<std::uint64_t>& room, const Visit& visit) {
    return std::all_of(sizes.begin(), sizes.end(), [&](std::uint64_t bytes) {
        const auto block =
            std::find_if(room.begin(), room.end(), [&](std::uint64_t r) { return r >= aligned_piece(bytes); });
        if (block == room.end()) {
            return false;
        }
        visit(static_cast<std::size_t>(block - room.begin()), *block);
        *block -= aligned_piece(bytes);
        return true;
    });
}

}  // namespace

std::uint64_t placed_bytes(std::span<const std::uint64_t> sizes) {
    std::uint64_t total = 0;
    for (const std::uint64_t bytes : sizes) {
        if (bytes > std::numeric_limits<std::uint64_t>::max() - kAlignment ||
            aligned_piece(bytes) > std::numeric_limits<std::uint64_t>::max() - total) {
            return std::numeric_limits<std::uint64_t>::max();
        }
        total += aligned_piece(bytes);
    }
    return total;
}

bool Arena::find_spots(std::span<const std::uint64_t> sizes, std::vector<Spot>* spots) const {
    std::vector<std::uint64_t> room;
    room.reserve(blocks_.size());
    for (const Allocation& block : blocks_) {
        room.push_back(block.whole.bytes);
    }
    return first_fit(sizes, room, [&](std::size_t block, std::uint64_t left) {
        if (spots != nullptr) {
            spots->push_back({block, blocks_[block].whole.bytes - left});
        }
    });
}

bool Arena::fits(std::span<const std::uint64_t> sizes) const { return find_spots(sizes, nullptr); }

void Arena::place(std::span<const std::uint64_t> sizes, std::vector<Slice>& slices) {
    spots_.clear();
    if (!find_spots(sizes, &spots_)) {
        grow(sizes);
        spots_.clear();
        static_cast<void>(find_spots(sizes, &spots_));
    }
    slices.clear();
    for (std::size_t i = 0; i < sizes.size(); ++i) {
        slices.push_back(blocks_.at(spots_.at(i).block).whole.part(spots_[i].offset, sizes[i]));
    }
}

void Arena::grow(std::span<const std::uint64_t> sizes) {
    const std::uint64_t limit = device_.profile().max_allocation / kAlignment * kAlignment;
    // Places pieces in blocks of the largest size first, then shrinks each block to what is used. Placing them in the
    // smaller blocks gives the same result, because a piece that does not fit a full-size block does not fit a smaller
    // one either.
    std::vector<std::uint64_t> room;
    for (std::size_t done = 0; done < sizes.size();) {
        const auto rest = sizes.subspan(done);
        std::size_t placed = 0;
        static_cast<void>(first_fit(rest, room, [&](std::size_t, std::uint64_t) { ++placed; }));
        done += placed;
        if (done < sizes.size()) {
            room.push_back(std::max(limit, aligned_piece(sizes[done])));
        }
    }
    release();
    std::vector<Allocation> blocks;
    for (const std::uint64_t left : room) {
        const std::uint64_t used = std::max(limit, left) - left;
        const std::uint64_t exact = std::max(used, kAlignment);
        try {
            blocks.push_back(allocate(device_, Use::device, rounded_block(exact, limit)));
        } catch (const ::vk::OutOfDeviceMemoryError&) {
            blocks.push_back(allocate(device_, Use::device, exact));
        }
    }
    blocks_ = std::move(blocks);
    for (const Allocation& block : blocks_) {
        held_ += block.whole.bytes;
    }
}

}  // namespace vkrnn::vk
