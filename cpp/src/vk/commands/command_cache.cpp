#include "vk/commands/command_cache.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace vkrnn::vk {
namespace {

constexpr std::size_t kRemembered = 64;             // keys of calls that were not kept
constexpr std::uint64_t kMostDispatches = 1 << 14;  // of all recordings: a driver may keep a kilobyte of each

std::size_t hash_of(const Recording::Key& key) {
    std::size_t hash = std::hash<const Plan*>()(key.plan.get());
    for (const std::uint64_t place : key.places) {
        hash = (hash ^ place) * 0x9E3779B97F4A7C15u;
    }
    return hash;
}

}  // namespace

Recording::Key::Key(std::shared_ptr<const Plan> of, std::span<const Slice> placements, std::string_view name)
    : plan(std::move(of)), label(name) {
    places.reserve(2 * placements.size());
    for (std::size_t i = 0; i < placements.size(); ++i) {
        // Inputs are read by their addresses alone, and imported anew for every call.
        const bool input = plan->buffers.at(i).role == Role::input;
        places.insert(places.end(), {placements[i].address, input ? 0 : placements[i].allocation});
    }
}

Recording::~Recording() { stream.settle(point); }

Recording* Recordings::find(const Recording::Key& key) {
    const auto found = std::find_if(kept_.begin(), kept_.end(), [&](const auto& each) { return each->key == key; });
    if (found == kept_.end()) {
        return nullptr;
    }
    kept_.splice(kept_.begin(), kept_, found);
    return kept_.front().get();
}

bool Recordings::comes_again(const Recording::Key& key) {
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

std::uint32_t Recordings::make_room() {
    while (kept_.size() >= kMost || dispatches_ > kMostDispatches) {
        dispatches_ -= kept_.back()->dispatches;
        kept_.pop_back();
    }
    std::uint32_t free = 0;
    while (std::any_of(kept_.begin(), kept_.end(), [&](const auto& each) { return each->timing == free; })) {
        ++free;
    }
    return free;
}

void Recordings::add(std::unique_ptr<Recording> recording) {
    dispatches_ += recording->dispatches;
    kept_.push_front(std::move(recording));
}

}  // namespace vkrnn::vk
