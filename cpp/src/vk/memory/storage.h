// The class behind vkrnn::Storage: a piece of a device's pool.
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

    // What was submitted up to the point uses or also writes the storage. Called in the order of the points.
    void use(Point point) { used_ = point; }
    void write(Point point) {
        used_ = written_ = point;
        changed();
    }
    [[nodiscard]] Point used() const { return used_; }
    [[nodiscard]] Point written() const { return written_; }

    // What fills it from the host, on a timeline that may be another.
    void upload(const std::shared_ptr<const Timeline>& timeline, Point point);
    [[nodiscard]] Point uploaded() const { return uploaded_; }

private:
    std::shared_ptr<Pool> pool_;
    Pool::Pieces lease_;
    long process_;
    std::atomic<Point> used_, written_;  // what was there before counts: it may not be done
    std::atomic<Point> uploaded_ = 0;
    std::shared_ptr<const Timeline> uploads_;
};

}  // namespace vkrnn::vk
