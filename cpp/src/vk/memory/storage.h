// Implements vkrnn::Storage by a piece of a device's pool.
#pragma once

#include <atomic>
#include <memory>

#include "packed_copies.h"
#include "vk/memory/pool.h"
#include "vkrnn/device.h"

namespace vkrnn::vk {

// A packed copy of an array's elements, made from that version of its contents.
class PackedCopy {
public:
    PackedCopy(std::shared_ptr<Pool> pool, std::uint64_t bytes, std::uint64_t made_from);
    ~PackedCopy() { pool_->give_back(std::move(lease_), used_); }
    PackedCopy(const PackedCopy&) = delete;
    PackedCopy& operator=(const PackedCopy&) = delete;

    [[nodiscard]] const Slice& slice() const { return lease_.front().slice; }
    // Notes that commands up to the point use the copy.
    void use(Point point) const { used_ = point; }

    const std::uint64_t version;

private:
    std::shared_ptr<Pool> pool_;
    Pool::Pieces lease_;
    mutable std::atomic<Point> used_;
};

class PoolStorage final : public Storage {
public:
    // Throws like Pool::take, whose `idle` this is.
    PoolStorage(const std::shared_ptr<Pool>& pool, std::uint64_t bytes, bool idle)
        : PoolStorage(pool, pool->take(bytes, idle), bytes) {}
    ~PoolStorage() override;

    [[nodiscard]] const Slice& slice() const { return lease_.front().slice; }
    [[nodiscard]] const Pool& pool() const { return *pool_; }

    // Notes that commands up to the point use, or also write, the storage. Called in the order of the points.
    void use(Point point) { used_ = point; }
    void write(Point point) {
        used_ = written_ = point;
        changed();
    }
    [[nodiscard]] Point used() const { return used_; }
    [[nodiscard]] Point written() const { return written_; }

    // Notes that an upload fills the storage at the point of a timeline, which may differ from the pool's.
    void upload(const std::shared_ptr<const Timeline>& timeline, Point point);
    [[nodiscard]] Point uploaded() const { return uploaded_; }

    // Packed copies of the elements, for whoever holds the device's lock.
    [[nodiscard]] PackedCopies<PackedCopy>& copies() { return copies_; }

private:
    // Does not throw, so that no lease is lost.
    PoolStorage(std::shared_ptr<Pool> pool, Pool::Pieces lease, std::uint64_t bytes) noexcept;

    std::shared_ptr<Pool> pool_;
    Pool::Pieces lease_;
    long process_;
    std::atomic<Point> used_, written_;  // start at the last use of the piece, which may still run
    std::atomic<Point> uploaded_ = 0;
    std::shared_ptr<const Timeline> uploads_;
    PackedCopies<PackedCopy> copies_;
};

}  // namespace vkrnn::vk
