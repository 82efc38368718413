// Calls as they were recorded, for those that come again: the same plan on the same memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vk/commands/stream.h"
#include "vkrnn/plan.h"

namespace vkrnn::vk {

struct Recording {
    // What the commands depend on: the addresses of the plan's buffers, and which allocations they are in, since a
    // command buffer does not outlive the buffers that it was recorded with.
    struct Key {
        Key(std::shared_ptr<const Plan> of, std::span<const Slice> placements, std::string_view name);
        bool operator==(const Key&) const = default;

        std::shared_ptr<const Plan> plan;
        std::string label;
        std::vector<std::uint64_t> places;
    };

    // To be submitted to the stream.
    Recording(Key what, Stream& to) : key(std::move(what)), stream(to) {}
    // Waits for the device.
    ~Recording();
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;

    Key key;
    Stream& stream;
    Commands commands;
    Point point = 0;  // of the last submission
    std::uint32_t timing = 0;
    std::uint64_t dispatches = 0;
};

// The last few of them.
class Recordings {
public:
    static constexpr std::size_t kMost = 32;

    // Null where there is none.
    [[nodiscard]] Recording* find(const Recording::Key& key);

    // Whether the key has come before, not long ago: a recording that is made for nothing costs memory.
    [[nodiscard]] bool comes_again(const Recording::Key& key);

    // Forgets those that were not used for longest where there are many. Returns a number below kMost that none has.
    std::uint32_t make_room();
    void add(std::unique_ptr<Recording> recording);

private:
    std::list<std::unique_ptr<Recording>> kept_;  // the last used first
    std::uint64_t dispatches_ = 0;                // of all
    std::deque<std::size_t> seen_;                // hashes of keys
};

}  // namespace vkrnn::vk
