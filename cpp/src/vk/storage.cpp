#include "storage.h"

#include "context.h"

namespace vkrnn::vk {

PoolStorage::PoolStorage(std::shared_ptr<Pool> pool, Pool::Pieces lease, std::uint64_t bytes)
    : Storage(bytes, lease.front().slice.host),
      pool_(std::move(pool)),
      lease_(std::move(lease)),
      process_(process_id()),
      used_(lease_.front().last_use) {}

PoolStorage::~PoolStorage() {
    if (process_ == process_id()) {
        pool_->give_back(std::move(lease_), used_);
    } else {
        // In a fork the driver's objects are of no use, and may not even be destroyed.
        static_cast<void>(new std::shared_ptr<Pool>(std::move(pool_)));  // NOLINT(cppcoreguidelines-owning-memory)
    }
}

}  // namespace vkrnn::vk
