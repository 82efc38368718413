// Memory of a CUDA device. It is allocated and freed in the order of a stream, so nothing waits for the host.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/fork_safe_mutex.h"
#include "cuda/libraries/driver.h"
#include "run/prepacked_copies.h"
#include "vkrnn/cuda.h"
#include "vkrnn/device.h"

namespace vkrnn::cuda {

// Makes a context current as long as the object exists.
class Current {
public:
    explicit Current(Context context) { check(driver().CtxPushCurrent(context)); }
    ~Current() {
        Context popped{};
        if (const Functions* const cu = driver_to_clean_up()) cu->CtxPopCurrent(&popped);
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;
};

// A device's context and a pool of its memory. Arrays keep the object after the device was closed.
class Memory {
public:
    // Retains the device's primary context, which other libraries use, too. Throws DriverError.
    explicit Memory(DeviceNumber device);
    ~Memory();
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    [[nodiscard]] Context context() const { return context_; }
    // Returns the address of kZeroBytes bytes of zeros, which nothing may overwrite.
    static constexpr std::uint64_t kZeroBytes = 1 << 16;
    [[nodiscard]] Address zeros() const { return zeros_; }
    // Returns the word of Role::failed_waits. It is in host memory, at the address that the device uses, too.
    [[nodiscard]] std::uint32_t& failed_waits() const { return *failed_waits_; }
    // Returns true in a process that was forked after the object was made. Such a process must not use the driver.
    [[nodiscard]] bool is_foreign() const;

    // The context must be current in the functions below.

    // Throws DriverError, but only after unused memory was returned to the driver.
    Address allocate(std::uint64_t bytes, Stream stream);
    void free(Address address, Stream stream) noexcept;

    // Returns the bytes that can be allocated, and those that are held for allocations.
    [[nodiscard]] std::uint64_t available() const;
    [[nodiscard]] std::uint64_t held() const;

    // Calls `release` when the work submitted to the stream so far is done. That is noticed by a later call of either
    // function.
    void release_after(Stream stream, std::function<void()> release) noexcept;
    void release_due() noexcept;

    // Guards the last uses of storages, and their prepacked copies.
    [[nodiscard]] ForkSafeMutex& mutex() const { return mutex_; }

private:
    [[nodiscard]] std::uint64_t pool_attribute(PoolAttribute attribute) const;

    DeviceNumber device_;
    long process_;
    Context context_{};
    MemoryPool pool_{};
    Address zeros_ = 0;
    std::uint32_t* failed_waits_ = nullptr;
    mutable ForkSafeMutex mutex_{ForkSafeMutex::Kind::driver};
    std::list<std::pair<Event, std::function<void()>>> waiting_;
};

// The last use of a piece of memory, for the order of calls on different streams.
class LastUse {
public:
    LastUse() = default;
    ~LastUse();
    LastUse(const LastUse&) = delete;
    LastUse& operator=(const LastUse&) = delete;

    // Makes the stream wait for the last use if that was on another stream.
    void before(Stream stream);
    // Records that commands of the stream use the memory.
    void after(Stream stream);

private:
    void record(Stream stream);

    Stream stream_{};
    Event event_{};  // set if the last stream is not the legacy one, because that stream may be destroyed
};

// A piece of memory that calls on different streams use one after the other.
class Piece {
public:
    Piece(std::shared_ptr<Memory> memory, std::uint64_t bytes, Stream stream);
    ~Piece();
    Piece(const Piece&) = delete;
    Piece& operator=(const Piece&) = delete;

    [[nodiscard]] Address address() const { return address_; }
    [[nodiscard]] LastUse& last_use() const { return *last_use_; }

private:
    std::shared_ptr<Memory> memory_;
    Address address_;
    std::unique_ptr<LastUse> last_use_ = std::make_unique<LastUse>();
};

// A prepacked copy of an array's elements. `version` says which contents were copied.
struct PrepackedCopy {
    PrepackedCopy(const std::shared_ptr<Memory>& memory, std::uint64_t bytes, std::uint64_t made_from, Stream stream)
        : piece(memory, bytes, stream), version(made_from) {}

    Piece piece;
    std::uint64_t version;
};

class CudaStorage final : public Storage {
public:
    // Allocates memory. Throws DriverError.
    CudaStorage(const std::shared_ptr<Memory>& memory, std::uint64_t bytes, Stream stream);
    // Borrows memory of another library. `release`, which may be empty, is called when no submitted work uses it.
    CudaStorage(std::shared_ptr<Memory> memory, Address address, std::uint64_t bytes, std::function<void()> release);
    ~CudaStorage() override;

    [[nodiscard]] Address address() const { return address_; }
    [[nodiscard]] bool is_borrowed() const { return !own_; }
    // Returns true if the storage orders its uses on different streams. Otherwise the caller does.
    [[nodiscard]] bool is_tracked() const { return own_ || release_; }
    [[nodiscard]] const Memory& memory() const { return *memory_; }

    // Returns nothing if another library can write the memory, because version() does not show such writes.
    [[nodiscard]] std::optional<std::uint64_t> prepacked_version() const {
        return is_borrowed() || lent_ ? std::nullopt : version();
    }

    // Hold the memory's mutex in the functions below.

    // Records that another library gets the memory, to use it on a stream.
    void lend_to(Stream stream);
    [[nodiscard]] LastUse& last_use() { return own_ ? own_->last_use() : last_use_; }
    [[nodiscard]] PrepackedCopies<PrepackedCopy>& copies() { return copies_; }

private:
    std::shared_ptr<Memory> memory_;
    std::unique_ptr<Piece> own_;
    Address address_;
    LastUse last_use_;
    std::function<void()> release_;
    bool lent_ = false, lent_elsewhere_ = false;  // lent_elsewhere_: to a stream that the legacy one may not wait for
    PrepackedCopies<PrepackedCopy> copies_;
};

}  // namespace vkrnn::cuda
