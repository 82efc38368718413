#include "transfer.h"

#include <algorithm>

namespace vkrnn::vk {

namespace {

// Parts on their way to the host. What they occupy of the ring is not reserved again before they are copied out.
constexpr std::size_t kParts = 4;
static_assert((kParts + 2) * Ring::kPart <= Ring::kBytes);

}  // namespace

Slice Ring::reserve(std::uint64_t bytes, const Poll& poll) {
    if (!memory_.whole.buffer) {
        memory_ = allocate(*timeline_.device(), use_, kBytes);
        free_until_ = held_ = kBytes;
    }
    const std::uint64_t room = aligned_piece(bytes);
    if (at_ % kBytes + room > kBytes) {
        at_ = align(at_, kBytes);
    }
    while (at_ + room > free_until_) {
        timeline_.wait(used_.front().point, poll);
        free_until_ = used_.front().end + kBytes;
        used_.pop_front();
    }
    const Slice slice = memory_.whole.part(at_ % kBytes, bytes);
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
    for (std::uint64_t done = 0; done < to.bytes;) {
        if (recorded_ >= Ring::kPart) {
            submitted(stream_.submit());
            stream_.begin(poll);
            recorded_ = 0;
        }
        const std::uint64_t bytes = std::min(to.bytes - done, Ring::kPart);
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
    for (std::uint64_t done = 0; done < from.bytes;) {
        const std::uint64_t bytes = std::min(from.bytes - done, Ring::kPart);
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
