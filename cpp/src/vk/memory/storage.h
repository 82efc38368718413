// Implements vkrnn::Storage with a piece of a device's pool.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "run/prepacked_copies.h"
#include "vk/memory/pool.h"
#include "vkrnn/device.h"

namespace vkrnn::vk {

// A prepacked copy of an array's elements. `version` says which contents were copied.
class PrepackedCopy {
public:
    PrepackedCopy(std::shared_ptr<Pool> pool, std::uint64_t bytes, std::uint64_t made_from);
    ~PrepackedCopy() { pool_->give_back(std::move(lease_), used_); }
    PrepackedCopy(const PrepackedCopy&) = delete;
    PrepackedCopy& operator=(const PrepackedCopy&) = delete;

    [[nodiscard]] const Slice& slice() const { return lease_.front().slice; }
    // Records that commands up to the point use the copy.
    void use(Point point) const { used_ = point; }

    const std::uint64_t version;

private:
    std::shared_ptr<Pool> pool_;
    Pool::Pieces lease_;
    mutable std::atomic<Point> used_;
};

class PoolStorage final : public Storage {
public:
    // Passes `idle` to Pool::take, and throws what it throws.
    PoolStorage(const std::shared_ptr<Pool>& pool, std::uint64_t bytes, bool idle)
        : PoolStorage(pool, pool->take(bytes, idle), bytes) {}
    ~PoolStorage() override;

    [[nodiscard]] const Slice& slice() const { return lease_.front().slice; }
    [[nodiscard]] const Pool& pool() const { return *pool_; }

    // Record that commands up to the point read or write the storage. Points must not decrease from call to call.
    void use(Point point) { used_ = point; }
    void write(Point point) {
        used_ = written_ = point;
        changed();
    }
    [[nodiscard]] Point used() const { return used_; }
    [[nodiscard]] Point written() const { return written_; }

    // Records that an upload fills the storage by this point of a timeline, which may differ from the pool's.
    void upload(const std::shared_ptr<const Timeline>& timeline, Point point);
    [[nodiscard]] Point uploaded() const { return uploaded_; }

    // Returns nothing for memory of the host, of which there are no copies.
    [[nodiscard]] std::optional<std::uint64_t> prepacked_version() const {
        return slice().address == 0 ? std::nullopt : version();
    }
    // Prepacked copies of the elements. The caller must hold the device's lock.
    [[nodiscard]] PrepackedCopies<PrepackedCopy>& copies() { return copies_; }

private:
    // Does not throw, because a lease would be lost.
    PoolStorage(std::shared_ptr<Pool> pool, Pool::Pieces lease, std::uint64_t bytes) noexcept;

    std::shared_ptr<Pool> pool_;
    Pool::Pieces lease_;
    long process_;
    std::atomic<Point> used_, written_;  // start at the last use of the piece, which may still run
    std::atomic<Point> uploaded_ = 0;
    std::shared_ptr<const Timeline> uploads_;
    PrepackedCopies<PrepackedCopy> copies_;
};

}  // namespace vkrnn::vk
