#include "scratch.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <variant>

namespace vkrnn {
namespace {

// Looking for memory to share takes microseconds. Below this size it is not worth it.
constexpr std::uint64_t kLeastShared = 1 << 20;

// Sizes that no device has saturate, so that they are refused later.
std::uint64_t room_of(const PlanBuffer& buffer, std::uint64_t alignment) {
    constexpr std::uint64_t kLargestBuffer = std::numeric_limits<std::uint64_t>::max() / 2;
    return (std::min(std::max<std::uint64_t>(buffer.bytes, 1), kLargestBuffer) + alignment - 1) / alignment * alignment;
}

std::uint64_t sum_of(std::uint64_t a, std::uint64_t b) { return a > ~b ? ~std::uint64_t{0} : a + b; }

// The stages of a plan that need a buffer's contents. Steps of one stage may run at the same time; a stage begins when
// the stage before it is done.
struct Life {
    std::size_t first = kNoBuffer, last = 0;

    void include(std::size_t stage) {
        first = std::min(first, stage);
        last = std::max(last, stage);
    }
    [[nodiscard]] bool overlaps(const Life& other) const { return first <= other.last && other.first <= last; }
};

class Lives {
public:
    explicit Lives(const Plan& plan) : plan_(plan), lives_(plan.buffers.size()) {
        for (std::size_t buffer = 0; buffer < lives_.size(); ++buffer)
            if (plan.buffers[buffer].role == Role::constant) lives_[buffer].include(kBefore);
        for (const Step& step : plan.steps) std::visit([&](const auto& each) { add(each); }, step);
    }

    [[nodiscard]] const Life& of(std::size_t buffer) const { return lives_[buffer]; }

private:
    void add(const Clear& clear) {
        lives_[clear.buffer].include(kBefore);  // a device may clear all buffers before the first dispatch
        lives_[clear.buffer].include(stage_);
    }
    void add(const Dispatch& dispatch) {
        if (dispatch.after) ++stage_;
        include(dispatch.push);
    }
    void add(const auto& loop_or_wavefront) {
        ++stage_;
        for_each_dispatch(loop_or_wavefront, [&](const Dispatch& dispatch) { include(dispatch.push); });
    }
    void include(const Block& block) {
        for (std::size_t i = 0; i < block.references; ++i) {
            const std::size_t buffer = referenced_buffer(reference_at(block, i));
            if (buffer >= lives_.size()) continue;  // refers to no buffer
            lives_[buffer].include(stage_);
            if (plan_.buffers[buffer].role == Role::constant) include(plan_.buffers[buffer].contents);
        }
    }

    static constexpr std::size_t kBefore = 0;  // the stage before the first step, in which constants are filled
    const Plan& plan_;
    std::vector<Life> lives_;
    std::size_t stage_ = kBefore + 1;
};

struct Placed {
    std::uint64_t begin, end;
    Life life;
};
using Piece = std::vector<Placed>;  // sorted by offset

// Returns the lowest offset at which `room` bytes are free during a life.
std::uint64_t first_gap(const Piece& piece, std::uint64_t room, const Life& life) {
    std::uint64_t at = 0;
    for (const Placed& other : piece) {
        if (!other.life.overlaps(life)) continue;
        if (other.begin >= at + room) break;
        at = std::max(at, other.end);
    }
    return at;
}

// Places buffers beside each other in the order given. Returns spots and sizes of pieces.
class Placing {
public:
    Placing(std::size_t buffers, std::uint64_t limit) : limit_(limit) { layout_.spots.resize(buffers); }

    void place(std::size_t i, std::uint64_t room, const Life& life) {
        std::size_t at = 0;
        std::uint64_t begin = 0;
        for (; at < pieces_.size(); ++at) {
            begin = first_gap(pieces_[at], room, life);
            if (room <= limit_ && begin <= limit_ - room) break;
        }
        if (at == pieces_.size()) {
            begin = 0;
            pieces_.emplace_back();
            layout_.pieces.push_back(0);
        }
        const auto after = std::ranges::upper_bound(pieces_[at], begin, {}, &Placed::begin);
        pieces_[at].insert(after, {begin, begin + room, life});
        layout_.spots[i] = {at, begin};
        layout_.pieces[at] = std::max(layout_.pieces[at], begin + room);
    }

    [[nodiscard]] ScratchLayout take() { return std::move(layout_); }

private:
    std::uint64_t limit_;
    std::vector<Piece> pieces_;
    ScratchLayout layout_;
};

std::uint64_t bytes_apart(const Plan& plan, std::span<const std::size_t> buffers, std::uint64_t alignment) {
    std::uint64_t bytes = 0;
    for (const std::size_t buffer : buffers) bytes = sum_of(bytes, room_of(plan.buffers[buffer], alignment));
    return bytes;
}

}  // namespace

std::uint64_t ScratchLayout::bytes() const { return std::accumulate(pieces.begin(), pieces.end(), 0ULL, sum_of); }

ScratchLayout place_scratch(const Plan& plan, std::span<const std::size_t> buffers, std::uint64_t alignment,
                            std::uint64_t limit) {
    Placing placing(buffers.size(), limit);
    std::vector<std::size_t> order(buffers.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::vector<bool> cleared(plan.buffers.size());
    for (const Step& step : plan.steps)
        if (const auto* clear = std::get_if<Clear>(&step)) cleared[clear->buffer] = true;
    const auto is_cleared = [&](std::size_t i) { return cleared[buffers[i]]; };
    if (bytes_apart(plan, buffers, alignment) < kLeastShared) {
        constexpr Life kAlways{.first = 0, .last = kNoBuffer};
        std::stable_partition(order.begin(), order.end(), is_cleared);
        for (const std::size_t i : order) placing.place(i, room_of(plan.buffers[buffers[i]], alignment), kAlways);
        return placing.take();
    }
    const Lives lives(plan);
    std::ranges::stable_sort(order, std::ranges::greater(),
                             [&](std::size_t i) { return plan.buffers[buffers[i]].bytes; });
    std::stable_partition(order.begin(), order.end(), is_cleared);
    for (const std::size_t i : order)
        placing.place(i, room_of(plan.buffers[buffers[i]], alignment), lives.of(buffers[i]));
    return placing.take();
}

void clear_first(Plan& plan) {
    std::stable_partition(plan.steps.begin(), plan.steps.end(), [&](const Step& step) {
        const auto* const clear = std::get_if<Clear>(&step);
        return clear != nullptr && plan.buffers[clear->buffer].role == Role::scratch;
    });
}

std::uint64_t shared_scratch(const Plan& plan, std::uint64_t limit) {
    std::vector<std::size_t> buffers;
    std::uint64_t apart = 0;
    for (std::size_t buffer = 0; buffer < plan.buffers.size(); ++buffer) {
        const Role role = plan.buffers[buffer].role;
        if (role != Role::scratch && role != Role::prepacked) continue;
        buffers.push_back(buffer);
        apart = sum_of(apart, plan.buffers[buffer].bytes);
    }
    return apart - std::min(apart, place_scratch(plan, buffers, 1, limit).bytes());
}

}  // namespace vkrnn
