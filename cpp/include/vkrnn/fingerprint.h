// Tells whether arrays have changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace vkrnn {

struct Hash {
    std::uint64_t low = 0, high = 0;
    friend bool operator==(const Hash&, const Hash&) = default;
};

// Hashes of 128 bits of all bytes of some arrays. A change that they do not show has a chance of 2^-128.
//
// Thread-safe.
class Fingerprint {
public:
    // Hashes the arrays, which must outlive the object. Throws DeviceError if the environment variable VKRNN_CPU_TARGET
    // has a wrong value.
    explicit Fingerprint(std::span<const std::span<const std::byte>> arrays);

    // Returns whether the arrays have the bytes that they had when the object was made. Several threads hash large
    // arrays. They are those that a call on the CPU device would use.
    [[nodiscard]] bool unchanged() const;

    // Returns the same for one of several parts of the arrays, on the calling thread.
    [[nodiscard]] bool unchanged(unsigned part, unsigned parts) const;

private:
    struct Chunk {
        std::span<const std::byte> bytes;
        Hash hash;
    };
    // Calls `work` with each part and the number of parts.
    void share(const std::function<void(unsigned part, unsigned parts)>& work) const;

    std::uint64_t bytes_ = 0;
    std::vector<Chunk> chunks_;
};

}  // namespace vkrnn
