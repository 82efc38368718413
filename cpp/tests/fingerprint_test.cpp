// Tests that fingerprints show every change, and that all instruction sets compute xxHash's XXH3_128bits.
#include "vkrnn/fingerprint.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "cpu/work/hash.h"

namespace vkrnn {
namespace {

using Bytes = std::vector<std::byte>;

Bytes bytes(std::size_t count) {
    Bytes made(count);
    for (std::size_t i = 0; i < count; ++i) made[i] = static_cast<std::byte>((i * 7 + 3) % 251);
    return made;
}

// Arrays without elements, of one chunk, of several, and of more than one thread is worth.
std::vector<Bytes> arrays() {
    std::vector<Bytes> made;
    for (const std::size_t count : {0, 1, 16, 240, 241, 65535, 65536, 65537, 200001, 3 << 20})
        made.push_back(bytes(count));
    return made;
}

Fingerprint fingerprint_of(const std::vector<Bytes>& arrays) {
    return Fingerprint(std::vector<std::span<const std::byte>>(arrays.begin(), arrays.end()));
}

// The hashes are those of the Python package xxhash.
TEST(Hash, IsThatOfXxHashOnEveryTarget) {
    const std::pair<std::size_t, Hash> kRight[] = {{0, {0x6001c324468d497f, 0x99aa06d3014798d8}},
                                                   {240, {0x2288b3c22f48dea4, 0x9a8457fec9cfea5e}},
                                                   {241, {0x82b1de299f6e411e, 0x07870750a9743956}},
                                                   {1000, {0xd45f5a87c5c20462, 0xc9b8608879afb00f}},
                                                   {70000, {0xd24f3f0661e64ae9, 0xdb29d900f6c14253}}};
    for (const cpu::Target& target : cpu::targets())
        for (const auto& [count, hash] : kRight)
            EXPECT_EQ(cpu::find_hash(target)(bytes(count)), hash) << target.name << ' ' << count;
}

TEST(Fingerprint, ShowsEveryFlippedBit) {
    for (const std::size_t count : {1, 12, 100, 200, 700}) {
        std::vector<Bytes> given{bytes(count)};
        const Fingerprint fingerprint = fingerprint_of(given);
        for (std::size_t bit = 0; bit < 8 * count; ++bit) {
            given[0][bit / 8] ^= std::byte{1} << bit % 8;
            EXPECT_FALSE(fingerprint.unchanged()) << count << ' ' << bit;
            given[0][bit / 8] ^= std::byte{1} << bit % 8;
        }
        EXPECT_TRUE(fingerprint.unchanged());
    }
}

TEST(Fingerprint, ShowsAFlippedBitOfEveryChunk) {
    std::vector<Bytes> given = arrays();
    const Fingerprint fingerprint = fingerprint_of(given);
    for (Bytes& array : given) {
        std::vector<std::size_t> places;
        for (std::size_t i = 0; i < array.size(); i += 40000) places.push_back(i);
        if (!array.empty()) places.push_back(array.size() - 1);
        for (const std::size_t i : places) {
            array[i] ^= std::byte{0x40};
            EXPECT_FALSE(fingerprint.unchanged()) << array.size() << ' ' << i;
            array[i] ^= std::byte{0x40};
        }
    }
    EXPECT_TRUE(fingerprint.unchanged());
}

// Each chunk belongs to one part, of any number of parts.
TEST(Fingerprint, IsSharedByParts) {
    std::vector<Bytes> given = arrays();
    const Fingerprint fingerprint = fingerprint_of(given);
    const auto changed_parts = [&](unsigned parts) {
        unsigned changed = 0;
        for (unsigned part = 0; part < parts; ++part) changed += !fingerprint.unchanged(part, parts);
        return changed;
    };
    for (const unsigned parts : {1, 2, 3, 7, 16, 1000}) {
        EXPECT_EQ(changed_parts(parts), 0U);
        for (Bytes& array : given) {
            if (array.empty()) continue;
            array.back() ^= std::byte{1};
            EXPECT_EQ(changed_parts(parts), 1U) << parts << ' ' << array.size();
            array.back() ^= std::byte{1};
        }
    }
}

// Equal bytes in another order are another content.
TEST(Fingerprint, ShowsSwappedChunks) {
    std::vector<Bytes> given{bytes(2 << 16)};
    given[0][0] ^= std::byte{1};
    const Fingerprint fingerprint = fingerprint_of(given);
    std::ranges::rotate(given[0], given[0].begin() + (1 << 16));
    EXPECT_FALSE(fingerprint.unchanged());
    std::ranges::rotate(given[0], given[0].begin() + (1 << 16));
    EXPECT_TRUE(fingerprint.unchanged());
}

}  // namespace
}  // namespace vkrnn
