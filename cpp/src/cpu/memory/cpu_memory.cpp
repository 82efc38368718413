#include "cpu/memory/cpu_memory.h"

#include <algorithm>
#include <bit>
#include <new>

#include "base/system.h"

namespace vkrnn::cpu {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kLarge = 1 << 20;
// Up to this size the pool keeps every piece. Above it, the pool holds at most one and a half times the peak use: a
// training step does not use all its pieces at once.
constexpr std::uint64_t kFreely = 128 << 20;

// Rounds sizes up by at most an eighth, so that a piece serves later calls of about the same size.
std::uint64_t rounded(std::uint64_t bytes) {
    const std::uint64_t least = std::max<std::uint64_t>(bytes, kAlignment);
    const std::uint64_t unit = std::max(std::bit_floor(least) / 8, least < kPage ? kAlignment : kPage);
    return least + unit - 1 < least ? least : (least + unit - 1) / unit * unit;
}

// Returns null if the system has no memory.
std::byte* allocate(std::uint64_t size) {
    const std::uint64_t alignment = size >= system::kHugePage ? system::kHugePage : size >= kPage ? kPage : kAlignment;
    const std::uint64_t whole = (size + alignment - 1) / alignment * alignment;
    if (whole < size) return nullptr;
    return static_cast<std::byte*>(system::allocate_memory(alignment, whole));
}

}  // namespace

Memory::~Memory() { release_unused(); }

// Returns the smallest unused piece that fits. Among equally small ones, returns the one given back last.
Memory::Pieces::iterator Memory::find(std::uint64_t bytes, bool brief) {
    const std::uint64_t most = brief ? ~std::uint64_t{0} : bytes + bytes / 4;
    auto best = unused_.end();
    for (auto piece = unused_.end(); piece != unused_.begin();) {
        --piece;
        if (piece->brief != brief) continue;
        if (piece->bytes == bytes) return piece;
        if (piece->bytes > bytes && piece->bytes <= most && (best == unused_.end() || piece->bytes < best->bytes))
            best = piece;
    }
    return best;
}

Memory::Piece Memory::take(std::uint64_t bytes, Use use) {
    const std::uint64_t size = rounded(bytes);
    const bool brief = use == Use::brief && size >= kLarge;
    {
        const std::lock_guard lock(mutex_);
        if (const auto found = find(size, brief); found != unused_.end()) {
            const Piece piece = *found;
            unused_.erase(found);
            unused_bytes_ -= piece.bytes;
            most_used_ = std::max(most_used_, held_ - unused_bytes_);
            return piece;
        }
        for (auto piece = unused_.end(); brief && piece != unused_.begin();)
            if ((--piece)->brief) piece = drop(piece);
        const std::uint64_t used = std::max(most_used_, held_ - unused_bytes_ + size);
        while (!unused_.empty() && held_ + size > std::max(used + used / 2, kFreely)) drop(unused_.begin());
    }
    Piece piece{allocate(size), size, brief};
    if (piece.data == nullptr && release_unused()) piece.data = allocate(size);
    if (piece.data == nullptr) throw std::bad_alloc();
    const std::lock_guard lock(mutex_);
    held_ += size;
    most_used_ = std::max(most_used_, held_ - unused_bytes_);
    return piece;
}

void Memory::give_back(Piece piece) noexcept {
    const std::lock_guard lock(mutex_);
    unused_.push_back(piece);
    unused_bytes_ += piece.bytes;
    shrink();
}

bool Memory::release_unused() noexcept {
    const std::lock_guard lock(mutex_);
    const bool any = !unused_.empty();
    while (!unused_.empty()) drop(unused_.end() - 1);
    return any;
}

void Memory::close() noexcept {
    const std::lock_guard lock(mutex_);
    most_unused_ = 0;
    shrink();
}

Memory::Pieces::iterator Memory::drop(Pieces::iterator piece) noexcept {
    unused_bytes_ -= piece->bytes;
    held_ -= piece->bytes;
    system::free_memory(piece->data);
    return unused_.erase(piece);
}

// Drops the pieces that were given back first. If there are too many, small ones go before large ones, which take the
// system longer to hand out again.
void Memory::shrink() noexcept {
    while (unused_bytes_ > most_unused_) drop(unused_.begin());
    if (unused_.size() > kMostPieces) {
        const auto small = std::ranges::find_if(unused_, [](const Piece& piece) { return piece.bytes < kLarge; });
        drop(small == unused_.end() ? unused_.begin() : small);
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

}  // namespace vkrnn::cpu
