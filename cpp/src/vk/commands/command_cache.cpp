#include "vk/commands/command_cache.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace vkrnn::vk {
namespace {

constexpr std::size_t kRemembered = 64;             // keys of calls seen once
constexpr std::uint64_t kMostDispatches = 1 << 14;  // in all cached commands: a driver may keep a kilobyte for each

std::size_t hash_of(const CachedCommands::Key& key) {
    std::size_t hash = std::hash<const Plan*>()(key.plan.get());
    for (const std::uint64_t address : key.addresses) {
        hash = (hash ^ address) * 0x9E3779B97F4A7C15u;
    }
    for (const std::size_t buffer : key.full) {
        hash = (hash ^ buffer) * 0x9E3779B97F4A7C15u;
    }
    return hash;
}

}  // namespace

CachedCommands::Key::Key(std::shared_ptr<const Plan> of, std::span<const Slice> placements,
                         std::span<const std::size_t> filled, std::string_view name)
    : plan(std::move(of)), label(name), full(filled.begin(), filled.end()) {
    addresses.reserve(2 * placements.size());
    for (std::size_t i = 0; i < placements.size(); ++i) {
        // Inputs count by address alone: kernels read them through addresses, and every call may import them anew.
        const bool input = plan->buffers.at(i).role == Role::input;
        addresses.insert(addresses.end(), {placements[i].address, input ? 0 : placements[i].allocation});
    }
}

CachedCommands::~CachedCommands() {
    stream.settle(point);
    pool.give_back(std::move(constants), point);
}

CachedCommands* CommandBufferCache::find(const CachedCommands::Key& key) {
    const auto found = std::find_if(cached_.begin(), cached_.end(), [&](const auto& each) { return each->key == key; });
    if (found == cached_.end()) {
        return nullptr;
    }
    cached_.splice(cached_.begin(), cached_, found);
    return cached_.front().get();
}

bool CommandBufferCache::was_seen(const CachedCommands::Key& key) {
    const std::size_t hash = hash_of(key);
    if (std::find(seen_.begin(), seen_.end(), hash) != seen_.end()) {
        return true;
    }
    seen_.push_back(hash);
    if (seen_.size() > kRemembered) {
        seen_.pop_front();
    }
    return false;
}

CachedCommands& CommandBufferCache::add(std::unique_ptr<CachedCommands> cached) {
    while (cached_.size() >= kCapacity || (!cached_.empty() && dispatches_ > kMostDispatches)) {
        dispatches_ -= cached_.back()->dispatches;
        cached_.pop_back();
    }
    cached_.push_front(std::move(cached));
    dispatches_ += cached_.front()->dispatches;
    return *cached_.front();
}

}  // namespace vkrnn::vk
