#include "vk/memory/storage.h"

#include "base/abandon.h"
#include "vk/device/context.h"

namespace vkrnn::vk {

PrepackedCopy::PrepackedCopy(std::shared_ptr<Pool> pool, std::uint64_t bytes, std::uint64_t made_from)
    : version(made_from), pool_(std::move(pool)), lease_(pool_->take(bytes, false)), used_(lease_.front().last_use) {}

PoolStorage::PoolStorage(std::shared_ptr<Pool> pool, Pool::Pieces lease, std::uint64_t bytes) noexcept
    : Storage(bytes, lease.front().slice.host),
      pool_(std::move(pool)),
      lease_(std::move(lease)),
      process_(system::process_id()),
      used_(lease_.front().last_use),
      written_(lease_.front().last_use) {}

PoolStorage::~PoolStorage() {
    if (process_ == system::process_id()) {
        if (uploads_) {
            uploads_->settle(uploaded_);  // rarely waits, because uploads are usually done
        }
        pool_->give_back(std::move(lease_), used_);
    } else {
        // In a forked process the driver's objects must not be used, nor destroyed, so they leak.
        abandon(std::move(pool_));
        abandon(std::move(uploads_));
        abandon(std::move(copies_));
    }
}

void PoolStorage::upload(const std::shared_ptr<const Timeline>& timeline, Point point) {
    if (timeline.get() == &pool_->timeline()) {
        write(point);
    } else {
        uploads_ = timeline;
        uploaded_ = point;
        changed();
    }
}

}  // namespace vkrnn::vk
