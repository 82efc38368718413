#include "vk/commands/transfer.h"

#include <algorithm>
#include <deque>

namespace vkrnn::vk {
namespace {

// The number of parts in flight to the host. The ring must not reuse their memory before they are copied out.
constexpr std::size_t kParts = 4;
static_assert(kParts + 2 <= Ring::kPieces);

// Returns the size of a copy's parts. There are several, so that the processor copies one while the device copies
// another. Each is large enough to be worth a submission.
std::uint64_t part_of(std::uint64_t bytes) {
    constexpr std::uint64_t kSmallestPart = 1 << 20;
    const std::uint64_t parts = std::clamp<std::uint64_t>(bytes / kSmallestPart, 1, Ring::kPieces);
    return std::min(align((bytes + parts - 1) / parts, kAlignment), Ring::kPart);
}

}  // namespace

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

void Transfer::discard() {
    up_.use_until(timeline_.submitted());
    down_.use_until(timeline_.submitted());
}

void Transfer::download(void* to, const Slice& from, const Poll& poll) {
    struct Part {
        std::uint64_t at;
        Slice slice;
        Point point;
    };
    discard();
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
