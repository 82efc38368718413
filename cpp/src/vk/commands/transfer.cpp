#include "vk/commands/transfer.h"

#include <algorithm>
#include <utility>

namespace vkrnn::vk {

namespace {

// Parts on their way to the host. What they occupy of the ring is not reserved again before they are copied out.
constexpr std::size_t kParts = 4;
static_assert(kParts + 2 <= Ring::kPieces);

// Of a copy: several, for the processor to copy one while the device copies another, but each worth a submission.
std::uint64_t part_of(std::uint64_t bytes) {
    constexpr std::uint64_t kSmallestPart = 1 << 20;
    const std::uint64_t parts = std::clamp<std::uint64_t>(bytes / kSmallestPart, 1, Ring::kPieces);
    return std::min(align((bytes + parts - 1) / parts, kAlignment), Ring::kPart);
}

}  // namespace

void Ring::grow(std::uint64_t bytes) {
    Allocation more = allocate(*timeline_.device(), use_, bytes);
    first_ = std::exchange(memory_, std::move(more));
    held_ += bytes;
    bytes_ = free_until_ = bytes;
    at_ = marked_ = 0;
    used_.clear();
}

Slice Ring::reserve(std::uint64_t bytes, const Poll& poll) {
    const std::uint64_t room = aligned_piece(bytes);
    if (const std::uint64_t wanted = room * kPieces > kFirstBytes ? kBytes : kFirstBytes; bytes_ < wanted) {
        grow(wanted);
    }
    if (at_ % bytes_ + room > bytes_) {
        at_ = align(at_, bytes_);
    }
    while (at_ + room > free_until_) {
        timeline_.wait(used_.front().point, poll);
        free_until_ = used_.front().end + bytes_;
        used_.pop_front();
    }
    const Slice slice = memory_.whole.part(at_ % bytes_, bytes);
    at_ += room;
    return slice;
}

void Ring::use_until(Point point) {
    if (at_ != marked_) {
        used_.push_back({at_, point});
        marked_ = at_;
    }
}

void Transfer::upload(const Slice& to, const void* from, const Poll& poll) {
    const auto* source = static_cast<const std::byte*>(from);
    if (!stream_.is_open()) {
        stream_.begin(poll);
        recorded_ = 0;
    }
    const std::uint64_t most = part_of(to.bytes);
    for (std::uint64_t done = 0; done < to.bytes;) {
        if (recorded_ >= most) {
            submitted(stream_.submit());
            stream_.begin(poll);
            recorded_ = 0;
        }
        const std::uint64_t bytes = std::min(to.bytes - done, most);
        const Slice part = up_.reserve(bytes, poll);
        workers_.copy(part.host, source + done, bytes);
        stream_.copy(part, to.part(done, bytes));
        recorded_ += bytes;
        done += bytes;
    }
}

void Transfer::submitted(Point point) {
    up_.use_until(point);
    recorded_ = 0;
}

void Transfer::download(void* to, const Slice& from, const Poll& poll) {
    struct Part {
        std::uint64_t at;
        Slice slice;
        Point point;
    };
    std::deque<Part> parts;
    const auto finish_oldest = [&] {
        const Part& part = parts.front();
        timeline_.wait(part.point, poll);
        workers_.copy(static_cast<std::byte*>(to) + part.at, part.slice.host, part.slice.bytes);
        parts.pop_front();
    };
    const std::uint64_t most = part_of(from.bytes);
    for (std::uint64_t done = 0; done < from.bytes;) {
        const std::uint64_t bytes = std::min(from.bytes - done, most);
        if (parts.size() == kParts) {
            finish_oldest();
        }
        const Slice slice = down_.reserve(bytes, poll);
        stream_.begin(poll);
        stream_.copy(from.part(done, bytes), slice);
        const Point point = stream_.submit();
        down_.use_until(point);
        parts.push_back({done, slice, point});
        done += bytes;
    }
    while (!parts.empty()) {
        finish_oldest();
    }
}

}  // namespace vkrnn::vk
