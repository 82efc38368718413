// The host's memory as arrays and plans have it: aligned pieces that are kept for a while after they are given back,
// because the system hands out new memory slowly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "fork_safe_mutex.h"
#include "packed_copies.h"
#include "vkrnn/device.h"

namespace vkrnn::cpu {

inline constexpr std::uint64_t kAlignment = 64;

// Thread-safe.
class Memory {
public:
    Memory() = default;
    ~Memory();
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    struct Piece {
        std::byte* data = nullptr;
        std::uint64_t bytes = 0;  // at least as many as were asked for
    };
    // Contents undefined. Throws std::bad_alloc.
    Piece take(std::uint64_t bytes);
    void give_back(Piece piece);
    // From now on gives the system back what nobody has.
    void close();

    // Bytes of all pieces, and of those that nobody has.
    [[nodiscard]] std::uint64_t held() const;
    [[nodiscard]] std::uint64_t unused() const;

    // Guards the memory, and the lists of packed copies in it.
    [[nodiscard]] ForkSafeMutex& mutex() const { return mutex_; }

private:
    // Unused memory is kept up to here; what was given back first goes first.
    static constexpr std::uint64_t kMostUnused = std::uint64_t{1} << 30;
    std::uint64_t most_unused_ = kMostUnused;

    void shrink();

    mutable ForkSafeMutex mutex_;
    std::list<Piece> unused_;  // given back last comes first
    std::uint64_t held_ = 0, unused_bytes_ = 0;
};

// A piece for as long as the object lives.
class Lease {
public:
    Lease(std::shared_ptr<Memory> memory, std::uint64_t bytes)
        : memory_(std::move(memory)), piece_(memory_->take(bytes)) {}
    ~Lease() { memory_->give_back(piece_); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    [[nodiscard]] std::byte* data() const { return piece_.data; }
    [[nodiscard]] const Memory& memory() const { return *memory_; }

private:
    std::shared_ptr<Memory> memory_;
    Memory::Piece piece_;
};

// A copy of an array's elements in the order in which kernels read them, made from that version of its contents.
struct PackedCopy {
    PackedCopy(std::shared_ptr<Memory> memory, std::uint64_t bytes) : lease(std::move(memory), bytes) {}

    Lease lease;
    std::uint64_t version = 0;
};

// An array's memory, and the last few packed copies of it.
class HostStorage final : public Storage {
public:
    HostStorage(const std::shared_ptr<Memory>& memory, std::uint64_t bytes)
        : HostStorage(std::make_unique<Lease>(memory, bytes), bytes) {}

    // The copy of those elements as they are now; null where there is none.
    std::shared_ptr<const PackedCopy> packed(const PackedKey& key);
    // Keeps one that is full.
    void keep(PackedKey key, std::shared_ptr<const PackedCopy> copy);

private:
    HostStorage(std::unique_ptr<Lease> lease, std::uint64_t bytes)
        : Storage(bytes, lease->data()), lease_(std::move(lease)) {}

    std::unique_ptr<Lease> lease_;
    PackedCopies<PackedCopy> copies_;  // the memory's mutex guards them
};

}  // namespace vkrnn::cpu
