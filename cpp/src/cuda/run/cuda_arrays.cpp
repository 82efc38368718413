// What a CUDA device does for arrays: allocates, copies and clears their memory, and shares it with other libraries.
#include <mutex>
#include <utility>

#include "cuda/run/cuda_device.h"
#include "cuda/run/execution.h"

namespace vkrnn::cuda {
namespace {

const std::string kArray = "[Array] ";

}  // namespace

std::shared_ptr<Storage> CudaDevice::allocate(std::uint64_t bytes, bool /*host_writes*/) {
    std::shared_ptr<Storage> made;
    in_context(kArray, [&](Session& session, Stream stream) {
        try {
            if (bytes > profile_.memory_bytes) throw DriverError{kOutOfMemory, {}};
            made = std::make_shared<CudaStorage>(session.memory, bytes, stream);
        } catch (const DriverError& error) {
            if (error.code != kOutOfMemory) throw;
            throw_no_room(kArray + "the array needs ", bytes, session);
        }
    });
    return made;
}

std::shared_ptr<Storage> CudaDevice::allocate_for_host(std::uint64_t /*bytes*/) {
    static_cast<void>(usable_session(kArray));
    return nullptr;
}

void CudaDevice::upload(const ResultLocation& to, const void* from, std::uint64_t bytes, const Poll& poll) {
    in_context(kArray, [&](Session& session, Stream stream) {
        CudaStorage& storage = own(*session.memory, *to.storage);
        {
            const std::lock_guard lock(session.memory->mutex());
            storage.last_use().before(stream);
            if (bytes != 0) check(driver().MemcpyHtoDAsync(storage.address() + to.offset, from, bytes, stream));
            storage.last_use().after(stream);
            storage.changed();
        }
        wait_for(stream, poll);  // the driver may still be reading pinned host memory
    });
    const std::lock_guard lock(state_mutex_);
    statistics_.bytes_uploaded += bytes;
}

void CudaDevice::download(void* to, const InputLocation& from, std::uint64_t bytes, const Poll& poll) {
    in_context(kArray, [&](Session& session, Stream stream) {
        CudaStorage& storage = own(*session.memory, *from.storage);
        {
            const std::lock_guard lock(session.memory->mutex());
            storage.last_use().before(stream);
            storage.last_use().after(stream);
        }
        wait_for(stream, poll);
        if (bytes != 0) check(driver().MemcpyDtoHAsync(to, storage.address() + from.offset, bytes, stream));
        wait_for(stream, poll);
    });
    const std::lock_guard lock(state_mutex_);
    statistics_.bytes_downloaded += bytes;
}

void CudaDevice::copy(const ResultLocation& to, const InputLocation& from, std::uint64_t bytes, const Poll& /*poll*/) {
    in_context(kArray, [&](Session& session, Stream stream) {
        CudaStorage &target = own(*session.memory, *to.storage), &source = own(*session.memory, *from.storage);
        const std::lock_guard lock(session.memory->mutex());
        for (CudaStorage* const used : {&target, &source})
            if (used->is_tracked()) used->last_use().before(stream);
        if (bytes != 0)
            check(
                driver().MemcpyDtoDAsync(target.address() + to.offset, source.address() + from.offset, bytes, stream));
        for (CudaStorage* const used : {&target, &source})
            if (used->is_tracked()) used->last_use().after(stream);
        target.changed();
    });
}

void CudaDevice::clear(const std::shared_ptr<Storage>& to, const Poll& /*poll*/) {
    in_context(kArray, [&](Session& session, Stream stream) {
        CudaStorage& storage = own(*session.memory, *to);
        const std::lock_guard lock(session.memory->mutex());
        storage.last_use().before(stream);
        if (storage.bytes() != 0) check(driver().MemsetD8Async(storage.address(), 0, storage.bytes(), stream));
        storage.last_use().after(stream);
        storage.changed();
    });
}

void CudaDevice::wait(const Storage& storage, const Poll& poll) {
    in_context(kArray, [&](Session& session, Stream stream) {
        {
            const std::lock_guard lock(session.memory->mutex());
            own(*session.memory, storage).last_use().before(stream);
        }
        wait_for(stream, poll);
        session.memory->release_due();
    });
}

std::shared_ptr<Storage> CudaDevice::borrow(Address address, std::uint64_t bytes, std::function<void()> release) {
    return std::make_shared<CudaStorage>(usable_session(kArray)->memory, address, bytes, std::move(release));
}

void CudaDevice::follow(Stream other) {
    in_context(kArray, [&](Session&, Stream stream) {
        Event event{};
        check(driver().EventCreate(&event, EventFlags::untimed));
        const Result recorded = driver().EventRecord(event, other);
        const Result waited = recorded == kSuccess ? driver().StreamWaitEvent(stream, event, 0) : recorded;
        driver().EventDestroy(event);
        check(waited);
    });
}

Address CudaDevice::lend(Storage& storage, Stream stream) {
    Address address = 0;
    in_context(kArray, [&](Session& session, Stream) {
        CudaStorage& lent = own(*session.memory, storage);
        const std::lock_guard lock(session.memory->mutex());
        lent.lend_to(stream);
        address = lent.address();
    });
    return address;
}

}  // namespace vkrnn::cuda
