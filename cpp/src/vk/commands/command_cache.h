// Caches the command buffers of calls. A call of the same plan on the same memory is then replayed instead of recorded.
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

#include "vk/commands/command_stream.h"
#include "vk/memory/pool.h"
#include "vk/pipelines/pipelines.h"
#include "vkrnn/plan.h"

namespace vkrnn::vk {

struct CachedCommands {
    // Identifies a call. Commands depend on the addresses of the plan's buffers and on the allocations that contain
    // them: a command buffer becomes invalid when a Vulkan buffer that it refers to is destroyed.
    struct Key {
        Key(std::shared_ptr<const Plan> of, std::span<const Slice> placements, std::span<const std::size_t> filled,
            std::string_view name);
        bool operator==(const Key&) const = default;

        std::shared_ptr<const Plan> plan;
        std::string label;
        std::vector<std::uint64_t> addresses;  // address and allocation of each buffer
        std::vector<std::size_t> full;         // prepacked buffers that the commands do not fill
    };

    // The commands are submitted to the stream. Their constants are in memory of their own.
    CachedCommands(Key what, CommandStream& to, Pool& memory) : key(std::move(what)), stream(to), pool(memory) {}
    // Waits until the device is done with the commands.
    ~CachedCommands();
    CachedCommands(const CachedCommands&) = delete;
    CachedCommands& operator=(const CachedCommands&) = delete;

    Key key;
    CommandStream& stream;
    Pool& pool;
    Pool::Pieces constants;
    Commands commands;
    Point point = 0;  // the last submission of the commands
    std::uint64_t dispatches = 0;
    std::vector<SharedKernel> kernels;  // kernels that the commands use
};

// Keeps the most recently used commands.
class CommandBufferCache {
public:
    static constexpr std::size_t kCapacity = 32;

    // Returns the commands of the call and marks them as used; null if they are not cached.
    [[nodiscard]] CachedCommands* find(const CachedCommands::Key& key);

    // Returns whether this key was looked up recently, and remembers it. Calls are cached when they are made for the
    // second time, so that a call made once costs no memory.
    [[nodiscard]] bool was_seen(const CachedCommands::Key& key);

    // Adds commands and returns them. If the cache is full, drops the least recently used ones.
    CachedCommands& add(std::unique_ptr<CachedCommands> cached);

private:
    std::list<std::unique_ptr<CachedCommands>> cached_;  // the most recently used first
    std::uint64_t dispatches_ = 0;                       // in all cached commands
    std::deque<std::size_t> seen_;                       // hashes of keys
};

}  // namespace vkrnn::vk
