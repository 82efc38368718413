// Tests the pool of device memory: what it allocates, keeps and returns to the driver.
#include <gtest/gtest.h>

#include <bit>
#include <mutex>
#include <set>
#include <thread>

#include "vk/device/context.h"
#include "vk/memory/pool.h"
#include "vk_plans.h"

namespace vkrnn::test {
namespace {

constexpr std::uint64_t kSlab = 1 << 20;
constexpr vk::Point kNever = 1000;  // nothing is submitted here: the timeline stays at 0

class Pools : public Vulkan {
protected:
    // Addresses identify pieces.
    static std::uint64_t address(const vk::Pool::Pieces& lease) { return lease.front().slice.address; }
    static std::uint64_t size(const vk::Pool::Pieces& lease) { return lease.front().slice.bytes; }

    vk::Pool::Pieces take(std::uint64_t bytes, bool idle = false) {
        auto lease = pool_.take(bytes, idle);
        EXPECT_EQ(lease.size(), 1u);
        EXPECT_GE(size(lease), bytes);
        EXPECT_EQ(address(lease) % vk::kAlignment, 0u);
        return lease;
    }
    // Takes a piece, frees it and returns its address.
    std::uint64_t passed_through(std::uint64_t bytes, vk::Point last_use = 0) {
        auto lease = take(bytes);
        const std::uint64_t where = address(lease);
        pool_.give_back(std::move(lease), last_use);
        return where;
    }

    const std::shared_ptr<const vk::Context> context_ = vk::Context::get();
    const std::shared_ptr<const vk::LogicalDevice> device_ =
        std::make_shared<vk::LogicalDevice>(vk::SelectedDevice{context_, context_->candidates().at(0)});
    vk::Pool pool_{std::make_shared<vk::Timeline>(device_, device_->compute_queue()), vk::Use::device};
};

TEST_F(Pools, SmallPiecesShareAllocations) {
    std::vector<vk::Pool::Pieces> leases;
    std::set<std::uint64_t> addresses;
    for (std::uint64_t i = 0; i < kSlab / 256; ++i) {
        leases.push_back(take(i % 257));
        EXPECT_EQ(size(leases.back()), 256u);
        addresses.insert(address(leases.back()));
    }
    EXPECT_EQ(addresses.size(), leases.size());
    EXPECT_EQ(*addresses.rbegin() - *addresses.begin(), kSlab - 256);
    EXPECT_EQ(pool_.held(), kSlab);
    leases.push_back(take(1));
    EXPECT_EQ(pool_.held(), 2 * kSlab);
    for (auto& lease : leases) {
        pool_.give_back(std::move(lease), 0);
    }
    EXPECT_EQ(pool_.held(), 2 * kSlab);
}

TEST_F(Pools, SmallPiecesComeInPowersOfTwo) {
    for (const std::uint64_t bytes : {1u, 256u, 257u, 1000u, 32769u, 65536u}) {
        auto lease = take(bytes);
        EXPECT_EQ(size(lease), std::max<std::uint64_t>(256, std::bit_ceil(bytes)));
        pool_.give_back(std::move(lease), 0);
    }
}

TEST_F(Pools, LargePiecesAreLittleLargerThanAskedFor) {
    for (const std::uint64_t bytes : {65537u, 100000u, 131072u, (1u << 20) + 1, 5'000'000u}) {
        const std::uint64_t before = pool_.held();
        auto lease = take(bytes);
        EXPECT_LE(size(lease), bytes + bytes / 8);
        EXPECT_EQ(pool_.held(), before + size(lease));
        EXPECT_EQ(pool_.unused(), 0u);
    }
}

TEST_F(Pools, FreedPiecesAreReused) {
    for (const std::uint64_t bytes : {100u, 60000u, 100000u, 10'000'000u}) {
        const std::uint64_t first = passed_through(bytes);
        const std::uint64_t held = pool_.held();
        for (int i = 0; i < 20; ++i) {
            EXPECT_EQ(passed_through(bytes), first);
            EXPECT_EQ(passed_through(bytes - bytes / 20), first);
        }
        EXPECT_EQ(pool_.held(), held);
    }
}

TEST_F(Pools, AMuchLargerPieceIsNotReused) {
    auto both = std::pair(take(4'000'000), take(2'000'000));  // the pool keeps up to their sum
    const std::uint64_t large = address(both.first);
    pool_.give_back(std::move(both.first), 0);
    auto small = take(1'000'000);
    EXPECT_NE(address(small), large);
    EXPECT_LT(size(small), 1'200'000u);
    pool_.give_back(std::move(small), 0);
    EXPECT_EQ(passed_through(3'900'000), large);
}

TEST_F(Pools, TheHostGetsPiecesThatTheDeviceHasFinished) {
    for (const std::uint64_t bytes : {1000u, 100000u}) {
        auto busy = take(bytes);
        auto idle = take(bytes);
        const std::uint64_t at_work = address(busy), at_rest = address(idle);
        pool_.give_back(std::move(idle), 0);
        pool_.give_back(std::move(busy), kNever);
        // Kernels run in the queue's order and may reuse the first piece. The host may not.
        auto lease = take(bytes);
        EXPECT_EQ(address(lease), at_work);
        EXPECT_EQ(lease.front().last_use, kNever);
        pool_.give_back(std::move(lease), kNever);
        for (int i = 0; i < 5; ++i) {
            auto host = take(bytes, true);
            EXPECT_NE(address(host), at_work);
            EXPECT_EQ(host.front().last_use, 0u);
            if (bytes > 65536) {  // a slab has many other small pieces
                EXPECT_EQ(address(host), at_rest);
            }
            pool_.give_back(std::move(host), 0);
        }
        // All pieces are in use: the pool allocates instead of waiting.
        auto only = take(bytes, true);
        auto fresh = take(bytes, true);
        EXPECT_NE(address(fresh), at_work);
        EXPECT_NE(address(fresh), address(only));
    }
}

TEST_F(Pools, KeepsNoMoreThanThePeakUse) {
    std::uint64_t largest = 0;
    for (std::uint64_t bytes = 100'000; bytes < 4'000'000; bytes = bytes * 3 / 2) {
        auto lease = take(bytes);
        largest = std::max(largest, size(lease));
        pool_.give_back(std::move(lease), 0);
        EXPECT_LE(pool_.unused(), largest);
        EXPECT_EQ(pool_.held(), pool_.unused());
    }
    const std::uint64_t held = pool_.held();
    for (int i = 0; i < 100; ++i) {
        passed_through(100'000 + static_cast<std::uint64_t>(i) * 7919 % 3'000'000);
        EXPECT_LE(pool_.held(), held + largest);
        EXPECT_LE(pool_.unused(), largest);
    }
}

TEST_F(Pools, PiecesInUseByTheDeviceAreNotFreed) {
    for (int i = 0; i < 4; ++i) {
        passed_through(std::uint64_t{200'000} << i, kNever);
    }
    const std::uint64_t held = pool_.held();
    EXPECT_GE(held, 200'000u * 15);
    EXPECT_EQ(pool_.unused(), held);
    // Pieces are freed in the order in which they came back.
    passed_through(200'000 << 3, kNever);
    EXPECT_EQ(pool_.held(), held);
    pool_.release_unused();
    EXPECT_EQ(pool_.held(), 0u);
}

TEST_F(Pools, ReleaseLeavesPiecesInUse) {
    auto kept = take(300'000);
    const std::uint64_t own = size(kept);
    passed_through(3'000'000);
    passed_through(10);
    EXPECT_GT(pool_.unused(), 0u);
    pool_.release_unused();
    EXPECT_EQ(pool_.unused(), 0u);
    EXPECT_EQ(pool_.held(), own + kSlab);
    pool_.give_back(std::move(kept), 0);
    EXPECT_EQ(pool_.unused(), own);
    pool_.give_back({}, 0);
    EXPECT_EQ(pool_.unused(), own);
}

TEST_F(Pools, NoPieceIsUsedTwiceAtATime) {
    std::mutex mutex;
    std::set<std::uint64_t> taken;
    std::vector<std::thread> threads;
    for (std::uint64_t thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&, thread] {
            for (std::uint64_t i = 0; i < 500; ++i) {
                const std::uint64_t bytes = i % 5 == 0 ? 100'000 + thread : 200 + i % 100;
                auto lease = pool_.take(bytes, i % 2 == 0);
                const std::uint64_t where = address(lease);
                {
                    const std::lock_guard lock(mutex);
                    EXPECT_TRUE(taken.insert(where).second);
                }
                std::this_thread::yield();
                {
                    const std::lock_guard lock(mutex);
                    taken.erase(where);
                }
                pool_.give_back(std::move(lease), 0);
            }
        });
    }
    for (auto& thread : threads) {
        thread.join();
    }
    EXPECT_LE(pool_.held(), 2 * kSlab + 5 * 120'000);
}

}  // namespace
}  // namespace vkrnn::test
