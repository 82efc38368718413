// Copies of an array's elements in the order in which kernels read them, kept from call to call.
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

// Which elements of an array are copied, and the plan's layout of the copy.
struct PackedKey {
    std::uint64_t offset, bytes;  // of the elements, in the array's storage
    std::vector<std::int64_t> layout;
    bool operator==(const PackedKey&) const = default;
};

// The last few copies of one array. A copy has the `version` of the contents that it was made from. Not thread-safe.
template <class Copy>
class PackedCopies {
public:
    using Shared = std::shared_ptr<const Copy>;
    using List = std::list<std::pair<PackedKey, Shared>>;

    // Returns the copy that was made from this version of the contents; null where there is none.
    Shared find(const PackedKey& key, std::optional<std::uint64_t> version) {
        const auto found = std::ranges::find(list_, key, &List::value_type::first);
        if (found == list_.end() || version != found->second->version) return nullptr;
        list_.splice(list_.begin(), list_, found);
        return list_.front().second;
    }

    // Keeps a copy, and returns those that are kept no longer.
    [[nodiscard]] List keep(PackedKey key, Shared copy) {
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

    List list_;  // the latest first
};

}  // namespace vkrnn
