#include "scratch.h"

#include <algorithm>
#include <numeric>
#include <variant>

#include "memory.h"

namespace vkrnn::cpu {
namespace {

// Looking for memory to share takes microseconds. Below this size it is not worth it.
constexpr std::uint64_t kLeastShared = 1 << 20;

std::uint64_t room_of(const PlanBuffer& buffer) { return (buffer.bytes + kAlignment - 1) / kAlignment * kAlignment; }

// The range of steps that need a buffer's contents.
struct Life {
    std::size_t first = kNoBuffer, last = 0;

    void include(std::size_t step) {
        first = std::min(first, step);
        last = std::max(last, step);
    }
    [[nodiscard]] bool overlaps(const Life& other) const { return first <= other.last && other.first <= last; }
};

std::vector<Life> lives_of(const Plan& plan) {
    std::vector<Life> lives(plan.buffers.size());
    for (std::size_t step = 0; step < plan.steps.size(); ++step) {
        if (const auto* clear = std::get_if<Clear>(&plan.steps[step])) {
            lives[clear->buffer].include(0);  // the device clears all buffers before the first dispatch
            lives[clear->buffer].include(step);
        } else if (const auto* dispatch = std::get_if<Dispatch>(&plan.steps[step])) {
            for (std::size_t i = 0; i < dispatch->push.places; ++i)
                lives[place_buffer(place_at(dispatch->push, i))].include(step);
        }
    }
    return lives;
}

struct Placed {
    std::uint64_t begin, end;
    Life life;
};

// Returns the lowest offset at which `room` bytes are free during a life. `placed` is sorted by offset.
std::uint64_t first_gap(const std::vector<Placed>& placed, std::uint64_t room, const Life& life) {
    std::uint64_t at = 0;
    for (const Placed& other : placed) {
        if (!other.life.overlaps(life)) continue;
        if (other.begin >= at + room) break;
        at = std::max(at, other.end);
    }
    return at;
}

}  // namespace

ScratchLayout place_scratch(const Plan& plan, std::span<const std::size_t> buffers) {
    ScratchLayout layout{.offsets = std::vector<std::uint64_t>(buffers.size())};
    for (std::size_t i = 0; i < buffers.size(); ++i) {
        layout.offsets[i] = layout.bytes;
        layout.bytes += room_of(plan.buffers[buffers[i]]);
    }
    if (layout.bytes < kLeastShared) return layout;

    const std::vector<Life> lives = lives_of(plan);
    std::vector<std::size_t> order(buffers.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, std::ranges::greater(),
                             [&](std::size_t i) { return plan.buffers[buffers[i]].bytes; });
    std::vector<Placed> placed;
    layout.bytes = 0;
    for (const std::size_t i : order) {
        const std::uint64_t room = room_of(plan.buffers[buffers[i]]);
        const Life& life = lives[buffers[i]];
        const std::uint64_t begin = first_gap(placed, room, life);
        const auto after = std::ranges::upper_bound(placed, begin, {}, &Placed::begin);
        placed.insert(after, {begin, begin + room, life});
        layout.offsets[i] = begin;
        layout.bytes = std::max(layout.bytes, begin + room);
    }
    return layout;
}

std::uint64_t shared_bytes(const Plan& plan) {
    std::vector<std::size_t> buffers;
    std::uint64_t apart = 0;
    for (std::size_t buffer = 0; buffer < plan.buffers.size(); ++buffer) {
        const Role role = plan.buffers[buffer].role;
        if (role != Role::scratch && role != Role::packed) continue;
        buffers.push_back(buffer);
        apart += room_of(plan.buffers[buffer]);
    }
    return apart - place_scratch(plan, buffers).bytes;
}

}  // namespace vkrnn::cpu
