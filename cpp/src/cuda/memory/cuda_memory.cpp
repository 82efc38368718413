#include "cuda/memory/cuda_memory.h"

#include <algorithm>
#include <limits>
#include <mutex>

#include "base/abandon.h"
#include "base/system.h"

namespace vkrnn::cuda {
namespace {

constexpr unsigned kPortable = 1, kMapped = 2;  // flags of MemHostAlloc

}  // namespace

Memory::Memory(DeviceNumber device) : device_(device), process_(system::process_id()) {
    const Functions& cu = driver();
    check(cu.DevicePrimaryCtxRetain(&context_, device));
    try {
        const Current current(context_);
        PoolProperties properties;
        properties.location.id = device;
        check(cu.MemPoolCreate(&pool_, &properties));
        // Otherwise each wait of the host would return all unused memory to the driver.
        std::uint64_t everything = std::numeric_limits<std::uint64_t>::max();
        check(cu.MemPoolSetAttribute(pool_, PoolAttribute::release_threshold, &everything));
        check(cu.MemAlloc(&zeros_, kZeroBytes));
        check(cu.MemsetD8Async(zeros_, 0, kZeroBytes, Stream::legacy));
        check(cu.CtxSynchronize());  // kernels on all streams read the zeros
        void* word = nullptr;
        check(cu.MemHostAlloc(&word, sizeof(std::uint32_t), kPortable | kMapped));
        failed_waits_ = static_cast<std::uint32_t*>(word);
    } catch (...) {
        if (zeros_ != 0) cu.MemFree(zeros_);
        if (pool_ != MemoryPool{}) cu.MemPoolDestroy(pool_);
        cu.DevicePrimaryCtxRelease(device);
        throw;
    }
}

Memory::~Memory() {
    if (is_foreign()) return;
    const Functions& cu = driver();
    try {
        const Current current(context_);
        cu.CtxSynchronize();
        release_due();
        cu.MemPoolDestroy(pool_);
        cu.MemFree(zeros_);
        cu.MemFreeHost(failed_waits_);
    } catch (const DriverError&) {  // the driver has already shut down
    }
    cu.DevicePrimaryCtxRelease(device_);
}

bool Memory::is_foreign() const { return process_ != system::process_id(); }

Address Memory::allocate(std::uint64_t bytes, Stream stream) {
    const Functions& cu = driver();
    Address address = 0;
    const std::uint64_t asked = std::max<std::uint64_t>(bytes, 1);
    Result result = cu.MemAllocFromPoolAsync(&address, asked, pool_, stream);
    if (result == kOutOfMemory) {
        cu.CtxSynchronize();
        release_due();
        cu.MemPoolTrimTo(pool_, 0);
        result = cu.MemAllocFromPoolAsync(&address, asked, pool_, stream);
    }
    check(result);
    return address;
}

void Memory::free(Address address, Stream stream) noexcept {
    if (const Functions* const cu = driver_to_clean_up()) cu->MemFreeAsync(address, stream);
}

std::uint64_t Memory::pool_attribute(PoolAttribute attribute) const {
    std::uint64_t value = 0;
    check(driver().MemPoolGetAttribute(pool_, attribute, &value));
    return value;
}

std::uint64_t Memory::available() const {
    std::size_t free = 0, total = 0;
    check(driver().MemGetInfo(&free, &total));
    return free + pool_attribute(PoolAttribute::reserved_now) - pool_attribute(PoolAttribute::used_now);
}

std::uint64_t Memory::held() const { return pool_attribute(PoolAttribute::reserved_now); }

void Memory::release_after(Stream stream, std::function<void()> release) noexcept {
    const Functions& cu = driver();
    Event event{};
    if (cu.EventCreate(&event, EventFlags::untimed) != kSuccess || cu.EventRecord(event, stream) != kSuccess) {
        cu.CtxSynchronize();
        release();
        return;
    }
    {
        const std::lock_guard lock(mutex_);
        waiting_.emplace_back(event, std::move(release));
    }
    release_due();
}

void Memory::release_due() noexcept {
    std::list<std::pair<Event, std::function<void()>>> due;
    {
        const std::lock_guard lock(mutex_);
        for (auto at = waiting_.begin(); at != waiting_.end();) {
            const auto next = std::next(at);
            const Result result = driver().EventQuery(at->first);
            if (result == kSuccess || DriverError{result, {}}.loses_device()) due.splice(due.end(), waiting_, at);
            at = next;
        }
    }
    for (const auto& [event, release] : due) {
        driver().EventDestroy(event);
        release();
    }
}

LastUse::~LastUse() {
    const Functions* const cu = driver_to_clean_up();
    if (event_ != Event{} && cu != nullptr) cu->EventDestroy(event_);
}

void LastUse::record(Stream stream) {
    if (event_ == Event{}) check(driver().EventCreate(&event_, EventFlags::untimed));
    check(driver().EventRecord(event_, stream));
}

void LastUse::before(Stream stream) {
    if (stream_ == Stream{} || stream_ == stream) return;
    if (stream_ == Stream::legacy) record(stream_);
    check(driver().StreamWaitEvent(stream, event_, 0));
}

void LastUse::after(Stream stream) {
    stream_ = stream;
    if (stream != Stream::legacy) record(stream);
}

Piece::Piece(std::shared_ptr<Memory> memory, std::uint64_t bytes, Stream stream)
    : memory_(std::move(memory)), address_(memory_->allocate(bytes, stream)) {
    last_use_->after(stream);
}

Piece::~Piece() {
    if (memory_->is_foreign()) {
        abandon(std::move(last_use_));
        abandon(std::move(memory_));
        return;
    }
    try {
        const Current current(memory_->context());
        last_use_->before(Stream::legacy);
        memory_->free(address_, Stream::legacy);
        last_use_.reset();
    } catch (const DriverError&) {  // the device was lost, or the driver has shut down
    }
}

CudaStorage::CudaStorage(const std::shared_ptr<Memory>& memory, std::uint64_t bytes, Stream stream)
    : Storage(bytes, nullptr),
      memory_(memory),
      own_(std::make_unique<Piece>(memory, bytes, stream)),
      address_(own_->address()) {}

CudaStorage::CudaStorage(std::shared_ptr<Memory> memory, Address address, std::uint64_t bytes,
                         std::function<void()> release)
    : Storage(bytes, nullptr), memory_(std::move(memory)), address_(address), release_(std::move(release)) {}

CudaStorage::~CudaStorage() {
    if (memory_->is_foreign()) {
        abandon(std::move(memory_));
        abandon(std::move(own_));
        abandon(std::move(copies_));
        return;
    }
    if (!release_ && !lent_elsewhere_) return;
    try {
        const Current current(memory_->context());
        // The other library may still use the memory that is freed now.
        if (lent_elsewhere_) check(driver().CtxSynchronize());
        if (!release_) return;
        last_use_.before(Stream::legacy);
        memory_->release_after(Stream::legacy, std::move(release_));
    } catch (const DriverError&) {
        if (release_) release_();
    }
}

void CudaStorage::lend_to(Stream stream) {
    last_use().before(stream);
    lent_ = true;
    lent_elsewhere_ = lent_elsewhere_ || stream != Stream::legacy;
}

}  // namespace vkrnn::cuda
