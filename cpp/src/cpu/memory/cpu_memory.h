// A pool of host memory for arrays and plans. It keeps returned pieces for a while, because the system is slow to hand
// out new memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/fork_safe_mutex.h"
#include "run/prepacked_copies.h"
#include "vkrnn/device.h"

namespace vkrnn::cpu {

inline constexpr std::uint64_t kAlignment = 64;

// Thread-safe.
class Memory {
public:
    // The most unused bytes and pieces that the pool keeps.
    static constexpr std::uint64_t kMostUnused = 512 << 20;
    static constexpr std::size_t kMostPieces = 128;

    Memory() { unused_.reserve(kMostPieces + 1); }
    ~Memory();
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    struct Piece {
        std::byte* data = nullptr;
        std::uint64_t bytes = 0;  // at least as many as requested
        bool brief = false;       // a large piece that only calls share
    };
    // The purpose of memory: an array, which may keep it, or a single call. An array gets an unused piece that is at
    // most a quarter larger than requested. Calls share large pieces: one that needs more replaces the unused smaller
    // ones.
    enum class Use : std::uint8_t { lasting, brief };
    // Returns a piece with undefined contents. Throws std::bad_alloc if the system has no memory even after the unused
    // pieces were returned to it.
    Piece take(std::uint64_t bytes, Use use = Use::lasting);
    // Does not allocate memory.
    void give_back(Piece piece) noexcept;
    // Returns all unused pieces to the system. Returns whether there were any.
    bool release_unused() noexcept;
    // Returns unused pieces to the system from now on.
    void close() noexcept;

    // Return the bytes of all pieces, and those of the unused ones.
    [[nodiscard]] std::uint64_t held() const;
    [[nodiscard]] std::uint64_t unused() const;

    // Guards the memory, and the lists of prepacked copies in it.
    [[nodiscard]] ForkSafeMutex& mutex() const { return mutex_; }

private:
    using Pieces = std::vector<Piece>;

    // These need the mutex.
    Pieces::iterator find(std::uint64_t bytes, bool brief);
    Pieces::iterator drop(Pieces::iterator piece) noexcept;
    void shrink() noexcept;

    mutable ForkSafeMutex mutex_;
    Pieces unused_;  // in the order in which they were given back; the capacity never changes
    std::uint64_t held_ = 0, unused_bytes_ = 0;
    std::uint64_t most_used_ = 0;  // the highest use so far
    std::uint64_t most_unused_ = kMostUnused;
};

// Owns a piece of memory as long as the object lives.
class Lease {
public:
    Lease(std::shared_ptr<Memory> memory, std::uint64_t bytes, Memory::Use use = Memory::Use::lasting)
        : memory_(std::move(memory)), piece_(memory_->take(bytes, use)) {}
    ~Lease() { memory_->give_back(piece_); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    [[nodiscard]] std::byte* data() const { return piece_.data; }

private:
    std::shared_ptr<Memory> memory_;
    Memory::Piece piece_;
};

// A copy of an array's elements in the order in which kernels read them. `version` says which contents were copied.
struct PrepackedCopy {
    PrepackedCopy(std::shared_ptr<Memory> memory, std::uint64_t bytes, std::uint64_t made_from)
        : lease(std::move(memory), bytes), version(made_from) {}

    Lease lease;
    std::uint64_t version;
};

// An array's memory, and the last few prepacked copies of it.
class HostStorage final : public Storage {
public:
    HostStorage(const std::shared_ptr<Memory>& memory, std::uint64_t bytes)
        : HostStorage(memory, memory->take(bytes), bytes) {}
    ~HostStorage() override { memory_->give_back(piece_); }
    HostStorage(const HostStorage&) = delete;
    HostStorage& operator=(const HostStorage&) = delete;

    [[nodiscard]] std::optional<std::uint64_t> prepacked_version() const { return version(); }
    // Hold the memory's mutex, but not while copies are destroyed.
    [[nodiscard]] PrepackedCopies<PrepackedCopy>& copies() { return copies_; }

private:
    HostStorage(std::shared_ptr<Memory> memory, Memory::Piece piece, std::uint64_t bytes) noexcept
        : Storage(bytes, piece.data), memory_(std::move(memory)), piece_(piece) {}

    std::shared_ptr<Memory> memory_;
    Memory::Piece piece_;
    PrepackedCopies<PrepackedCopy> copies_;
};

}  // namespace vkrnn::cpu
