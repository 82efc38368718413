// What a Vulkan device does for arrays: allocates, copies and clears their memory.
#include <algorithm>
#include <cstring>

#include "base/messages.h"
#include "vk/device/vulkan_error.h"
#include "vk/run/executor.h"
#include "vk/run/session.h"

namespace vkrnn::vk {
namespace {

const std::string kArray = "[Array] ";

}  // namespace

std::shared_ptr<Storage> Executor::allocate(std::uint64_t bytes, bool host_writes) {
    const auto session = usable_session(kArray);
    Pool& pool = *session->pools.device;
    const std::uint64_t free =
        bytes > kChecked ? session->device->free_memory(pool.held()) + pool.unused() : profile_.max_allocation;
    if (bytes > std::min(free, profile_.max_allocation - kAlignment)) {
        throw MemoryError(kArray + "the array needs " + bytes_text(bytes) + ", " +
                              bytes_text(std::min(free, profile_.max_allocation)) + " are available on " +
                              profile_.name,
                          bytes, free);
    }
    try {
        const bool idle = host_writes && session->device->unified_memory();
        return std::make_shared<PoolStorage>(session->pools.device, bytes, idle);
    } catch (...) {
        rethrow_translated(kArray, bytes, free);
    }
}

std::shared_ptr<Storage> Executor::allocate_for_host(std::uint64_t bytes) {
    const auto session = session_to_wait_for(kArray);
    if (session->device->unified_memory()) {
        return allocate(bytes, false);
    }
    Pool& pool = *session->pools.results;
    if (pool.held() - pool.unused() + bytes > session->for_host) {
        return nullptr;
    }
    try {
        return std::make_shared<PoolStorage>(session->pools.results, bytes, false);
    } catch (...) {
        return nullptr;
    }
}

void Executor::upload(const ResultLocation& to, const void* from, std::uint64_t bytes, const Poll& poll) {
    const auto session = usable_session(kArray);
    PoolStorage& storage = session->pools.own(*to.storage);
    const Slice slice = storage.slice().part(to.offset, bytes);
    if (slice.host != nullptr) {
        wait_for(*session->timeline, storage.used(), kArray, poll);
        session->workers.copy(slice.host, from, bytes);
        storage.changed();
    } else {
        InterruptibleMutex& mutex = session->upload_timeline == session->timeline ? submit_mutex_ : upload_mutex_;
        with_lock(mutex, kArray, poll, [&](Session& locked) {
            locked.upload_stream.begin(poll);
            locked.upload_stream.after(*locked.timeline, storage.used());
            locked.upload_transfer.discard();
            try {
                locked.upload_transfer.upload(slice, from, poll);
                locked.upload_transfer.submitted(locked.upload_stream.submit());
            } catch (...) {
                storage.upload(locked.upload_timeline, locked.upload_timeline->submitted());  // a part may be in flight
                throw;
            }
            storage.upload(locked.upload_timeline, locked.upload_timeline->submitted());
        });
    }
    const std::lock_guard lock(state_mutex_);
    statistics_.bytes_uploaded += bytes;
}

void Executor::download(void* to, const InputLocation& from, std::uint64_t bytes, const Poll& poll) {
    const auto session = session_to_wait_for(kArray);
    PoolStorage& storage = session->pools.own(*from.storage);
    const Slice slice = storage.slice().part(from.offset, bytes);
    wait_for_contents(*session, storage, poll);
    if (slice.host != nullptr) {
        session->workers.copy(to, slice.host, bytes);
    } else {
        with_lock(submit_mutex_, kArray, poll, [&](Session& locked) {
            try {
                locked.transfer.download(to, slice, poll);
            } catch (...) {
                storage.use(locked.timeline->submitted());  // a part may be in flight
                throw;
            }
        });
    }
    const std::lock_guard lock(state_mutex_);
    statistics_.bytes_downloaded += bytes;
}

void Executor::copy(const ResultLocation& to, const InputLocation& from, std::uint64_t bytes, const Poll& poll) {
    const auto session = session_to_wait_for(kArray);
    PoolStorage& target = session->pools.own(*to.storage);
    PoolStorage& source = session->pools.own(*from.storage);
    submit_copy(source, target, poll, [&](const CommandStream& stream) {
        stream.copy(source.slice().part(from.offset, bytes), target.slice().part(to.offset, bytes));
    });
    const std::lock_guard lock(state_mutex_);
    statistics_.bytes_downloaded += target.slice().address == 0 ? bytes : 0;
}

void Executor::clear(const std::shared_ptr<Storage>& to, const Poll& poll) {
    const auto session = usable_session(kArray);
    PoolStorage& storage = session->pools.own(*to);
    const Slice& slice = storage.slice();
    if (slice.host != nullptr) {
        wait_for(*session->timeline, storage.used(), kArray, poll);
        std::memset(slice.host, 0, slice.bytes);
        storage.changed();
        return;
    }
    submit_copy(storage, storage, poll, [&](const CommandStream& stream) {
        stream.commands().fillBuffer(slice.buffer, slice.offset, align(slice.bytes, 4), 0);
    });
}

void Executor::wait(const Storage& storage, const Poll& poll) {
    const auto session = session_to_wait_for(kArray);
    wait_for_contents(*session, session->pools.own(storage), poll);
}

void Executor::submit_copy(PoolStorage& source, PoolStorage& target, const Poll& poll,
                           const std::function<void(const CommandStream&)>& record) {
    with_lock(submit_mutex_, kArray, poll, [&](Session& locked) {
        locked.stream.begin(poll);
        locked.stream.after(*locked.upload_timeline, std::max(source.uploaded(), target.uploaded()));
        record(locked.stream);
        const Point point = locked.stream.submit();
        source.use(point);
        target.write(point);
    });
}

void Executor::wait_for_contents(const Session& session, const PoolStorage& storage, const Poll& poll) {
    wait_for(*session.timeline, storage.written(), kArray, poll);
    wait_for(*session.upload_timeline, storage.uploaded(), kArray, poll);
}

}  // namespace vkrnn::vk
