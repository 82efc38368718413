// Implements vkrnn::Storage by a piece of a device's pool.
#pragma once

#include <atomic>
#include <memory>

#include "vk/memory/pool.h"
#include "vkrnn/device.h"

namespace vkrnn::vk {

class PoolStorage final : public Storage {
public:
    PoolStorage(std::shared_ptr<Pool> pool, Pool::Pieces lease, std::uint64_t bytes);
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

private:
    std::shared_ptr<Pool> pool_;
    Pool::Pieces lease_;
    long process_;
    std::atomic<Point> used_, written_;  // start at the last use of the piece, which may still run
    std::atomic<Point> uploaded_ = 0;
    std::shared_ptr<const Timeline> uploads_;
};

}  // namespace vkrnn::vk
