// Tests copying with several threads.
#include "vk/memory/workers.h"

#include <gtest/gtest.h>
#ifdef __linux__
#include <sys/resource.h>
#endif

#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

namespace vkrnn::test {
namespace {

constexpr std::uint64_t kMany = 2 << 20;  // copies of this size use several threads

std::vector<unsigned char> counted(std::uint64_t bytes, unsigned char first = 1) {
    std::vector<unsigned char> made(bytes);
    std::iota(made.begin(), made.end(), first);
    return made;
}

void expect_copied(vk::Workers& workers, std::uint64_t bytes) {
    const auto from = counted(bytes);
    std::vector<unsigned char> to(bytes + 1, 0xEE);
    workers.copy(to.data(), from.data(), bytes);
    EXPECT_EQ(to.back(), 0xEE) << bytes;
    to.pop_back();
    EXPECT_TRUE(to == from) << bytes;
}

// The parameter is the number of threads besides the calling one.
class Workers : public testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(Helpers, Workers, testing::Values(0, 1, 2, 7));

TEST_P(Workers, CopyEveryByte) {
    vk::Workers workers(GetParam());
    workers.copy(nullptr, nullptr, 0);
    for (const std::uint64_t bytes : {1ul, 4095ul, kMany - 1, kMany, kMany + 1, 3 * kMany + 12345}) {
        expect_copied(workers, bytes);
    }
    // Every thread gets whole pages, and a few bytes remain.
    constexpr std::uint64_t kPages = 4096ul * 2 * 3 * 8 * 20;
    for (std::uint64_t rest = 0; rest < 10; ++rest) {
        expect_copied(workers, kPages + rest);
    }
}

#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(FewThreads, CopyNevertheless) {
    const auto from = counted(kMany + 1);
    std::vector<unsigned char> to(from.size());
    rlimit usual{};
    getrlimit(RLIMIT_AS, &usual);
    const rlimit none{.rlim_cur = 0, .rlim_max = usual.rlim_max};  // stacks of earlier threads only
    vk::Workers workers(100);
    setrlimit(RLIMIT_AS, &none);
    workers.copy(to.data(), from.data(), from.size());
    setrlimit(RLIMIT_AS, &usual);
    EXPECT_TRUE(to == from);
    expect_copied(workers, kMany);
}
#endif

TEST_P(Workers, ServeSeveralThreadsAtATime) {
    vk::Workers workers(GetParam());
    std::atomic<int> right = 0;
    std::vector<std::thread> threads;
    for (unsigned char thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&, thread] {
            const auto from = counted(kMany + 1000u * thread, thread);
            for (int i = 0; i < 20; ++i) {
                std::vector<unsigned char> to(from.size());
                workers.copy(to.data(), from.data(), from.size());
                right += to == from;
            }
        });
    }
    for (auto& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(right, 80);
}

}  // namespace
}  // namespace vkrnn::test
