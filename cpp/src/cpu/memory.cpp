#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <iterator>
#include <new>

namespace vkrnn::cpu {
namespace {

constexpr std::uint64_t kHugePage = 2 << 20;

// Sizes are rounded up by at most an eighth, so that a piece serves later calls of about the same size.
std::uint64_t rounded(std::uint64_t bytes) {
    const std::uint64_t least = std::max<std::uint64_t>(bytes, 4096);
    const std::uint64_t unit = std::max<std::uint64_t>(std::bit_floor(least) / 8, 4096);
    return least + unit - 1 < least ? least : (least + unit - 1) / unit * unit;
}

}  // namespace

Memory::~Memory() {
    for (const Piece& piece : unused_) std::free(piece.data);  // NOLINT(cppcoreguidelines-no-malloc)
}

Memory::Piece Memory::take(std::uint64_t bytes) {
    const std::uint64_t size = rounded(bytes);
    {
        const std::lock_guard lock(mutex_);
        const auto found = std::ranges::find(unused_, size, &Piece::bytes);
        if (found != unused_.end()) {
            const Piece piece = *found;
            unused_bytes_ -= piece.bytes;
            unused_.erase(found);
            return piece;
        }
    }
    const std::uint64_t alignment = size >= kHugePage ? kHugePage : 4096;
    const std::uint64_t whole = (size + alignment - 1) / alignment * alignment;
    if (whole < bytes) throw std::bad_alloc();
    auto* const data =
        static_cast<std::byte*>(std::aligned_alloc(alignment, whole));  // NOLINT(cppcoreguidelines-no-malloc)
    if (data == nullptr) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
    if (alignment == kHugePage) madvise(data, whole, MADV_HUGEPAGE);
#endif
    const std::lock_guard lock(mutex_);
    held_ += size;
    return {data, size};
}

void Memory::give_back(Piece piece) {
    const std::lock_guard lock(mutex_);
    unused_.push_front(piece);
    unused_bytes_ += piece.bytes;
    shrink();
}

void Memory::close() {
    const std::lock_guard lock(mutex_);
    most_unused_ = 0;
    shrink();
}

// With the mutex held.
void Memory::shrink() {
    while (unused_bytes_ > most_unused_) {
        unused_bytes_ -= unused_.back().bytes;
        held_ -= unused_.back().bytes;
        std::free(unused_.back().data);  // NOLINT(cppcoreguidelines-no-malloc)
        unused_.pop_back();
    }
}

std::uint64_t Memory::held() const {
    const std::lock_guard lock(mutex_);
    return held_;
}

std::uint64_t Memory::unused() const {
    const std::lock_guard lock(mutex_);
    return unused_bytes_;
}

std::shared_ptr<const PackedCopy> HostStorage::packed(const PackedKey& key) {
    const std::lock_guard lock(lease_->memory().mutex());
    return copies_.find(key, version());
}

void HostStorage::keep(PackedKey key, std::shared_ptr<const PackedCopy> copy) {
    PackedCopies<PackedCopy>::List dropped;  // destroyed without the mutex, which they take to give their memory back
    const std::lock_guard lock(lease_->memory().mutex());
    dropped = copies_.keep(std::move(key), std::move(copy));
}

}  // namespace vkrnn::cpu
