// A cache of prepacked copies of an array: its elements in the order in which kernels read them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace vkrnn {

// The key of a copy: which elements of the array it has, and in which layout.
struct PrepackedKey {
    std::uint64_t offset, bytes;  // of the elements, in the array's storage
    std::vector<std::int64_t> layout;
    bool operator==(const PrepackedKey&) const = default;
};

// The most recently used copies of one array. Each has the `version` of the contents that it was made from. Not
// thread-safe.
template <class Copy>
class PrepackedCopies {
public:
    using Shared = std::shared_ptr<const Copy>;
    using List = std::list<std::pair<PrepackedKey, Shared>>;

    // Returns the copy that was made from this version of the contents; null if there is none.
    Shared find(const PrepackedKey& key, std::optional<std::uint64_t> version) {
        const auto found = std::ranges::find(list_, key, &List::value_type::first);
        if (found == list_.end() || version != found->second->version) return nullptr;
        list_.splice(list_.begin(), list_, found);
        return list_.front().second;
    }

    // Adds a copy. Returns the copies that were dropped for it.
    [[nodiscard]] List keep(PrepackedKey key, Shared copy) {
        List dropped, added;
        added.emplace_front(std::move(key), std::move(copy));
        const auto old = std::ranges::find(list_, added.front().first, &List::value_type::first);
        if (old != list_.end()) dropped.splice(dropped.begin(), list_, old);
        list_.splice(list_.begin(), added);
        if (list_.size() > kMost) dropped.splice(dropped.begin(), list_, std::prev(list_.end()));
        return dropped;
    }

private:
    static constexpr std::size_t kMost = 8;

    List list_;  // most recently used first
};

}  // namespace vkrnn
