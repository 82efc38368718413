// Copies of an array's contents as kernels read them, which stay with the array for the calls to come.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "pool.h"

namespace vkrnn::vk {

struct PackedCopy {
    // Throws like Pool::take.
    PackedCopy(std::shared_ptr<Pool> from, std::uint64_t bytes)
        : pool(std::move(from)), lease(pool->take(bytes, false)), slice(lease.front().slice.part(0, bytes)) {}
    ~PackedCopy() { pool->give_back(std::move(lease), used); }
    PackedCopy(const PackedCopy&) = delete;
    PackedCopy& operator=(const PackedCopy&) = delete;

    std::shared_ptr<Pool> pool;
    Pool::Pieces lease;
    Slice slice;
    std::optional<std::uint64_t> version;  // of the contents that it is a copy of; none yet
    Point used = 0;                        // what was submitted up to then uses it
};

// The last few copies of an array. For whoever has the device's turn.
class PackedCopies {
public:
    static constexpr std::size_t kMost = 8;

    struct Key {
        std::uint64_t offset, bytes;  // of what is packed, in the array's storage
        std::vector<std::int64_t> layout;
        bool operator==(const Key&) const = default;
    };

    // Null where there is none.
    [[nodiscard]] std::shared_ptr<PackedCopy> find(const Key& key) {
        const auto found =
            std::find_if(copies_.begin(), copies_.end(), [&](const auto& each) { return each.first == key; });
        if (found == copies_.end()) {
            return nullptr;
        }
        copies_.splice(copies_.begin(), copies_, found);
        return found->second;
    }
    // Lets go of the one that was not asked for for longest where there are many.
    void add(Key key, std::shared_ptr<PackedCopy> copy) {
        copies_.emplace_front(std::move(key), std::move(copy));
        if (copies_.size() > kMost) {
            copies_.pop_back();
        }
    }

private:
    std::list<std::pair<Key, std::shared_ptr<PackedCopy>>> copies_;  // the last used first
};

}  // namespace vkrnn::vk
