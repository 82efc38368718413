#include "vk/memory/ring.h"

#include <utility>

namespace vkrnn::vk {

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

}  // namespace vkrnn::vk
