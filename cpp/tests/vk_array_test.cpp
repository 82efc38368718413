// Tests transfers to and from storages and asynchronous calls on them, through the public interface of the Vulkan
// layer.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "polls.h"
#include "vk/memory/ring.h"
#include "vk_arrays.h"

namespace vkrnn::test {
namespace {

TEST_P(Arrays, UploadAndDownload) {
    std::uint64_t total = 0;
    for (const std::uint64_t bytes : {0, 1, 3, 4, 255, 256, 257, 65536, 65537, (1 << 20) + 3}) {
        const Bytes wanted = pattern(bytes);
        Bytes source = wanted;
        const Shared storage = put(source);
        std::fill(source.begin(), source.end(), 0);  // it may change once upload() has returned
        EXPECT_EQ(storage->bytes(), bytes);
        EXPECT_EQ(storage->host() != nullptr, mapped_);
        EXPECT_EQ(bytes_of(storage), wanted) << bytes;
        total += bytes;
        EXPECT_EQ(device_->statistics().bytes_uploaded, total);
        EXPECT_EQ(device_->statistics().bytes_downloaded, total);
    }
    EXPECT_EQ(device_->statistics().calls, 0u);
}

TEST_P(Arrays, CopyPartsAtOddOffsets) {
    Bytes wanted = pattern(1001);
    const Shared storage = put(wanted);
    for (const std::uint64_t offset : {1, 13, 256, 511}) {
        const Bytes part = pattern(101 + offset % 2, 7);
        device_->upload({.host = nullptr, .storage = storage, .offset = offset}, part.data(), part.size(), {});
        std::copy(part.begin(), part.end(), wanted.begin() + static_cast<std::ptrdiff_t>(offset));
        EXPECT_EQ(bytes_of(storage, offset, part.size()), part);
        EXPECT_EQ(bytes_of(storage), wanted);
    }
}

TEST_P(Arrays, ClearingComesAfterEarlierCalls) {
    for (const std::uint64_t bytes : {4u, 258u, 100001u}) {
        const Shared storage = put(pattern(bytes));
        start(slow_plan(4), {}, {.storage = storage});
        device_->clear(storage, {});
        EXPECT_EQ(bytes_of(storage), Bytes(bytes, 0));
    }
}

TEST_P(Arrays, UploadsComeAfterEarlierCalls) {
    const Shared storage = put(Words{5, 6, 7});
    const Shared sum = added(storage);
    start(slow_plan(12), {}, {.storage = storage});  // writes
    const Words late{8, 9, 10};
    device_->upload({.host = nullptr, .storage = storage}, late.data(), 12, {});
    EXPECT_EQ(words_of(storage), late);
    EXPECT_EQ(words_of(sum), (Words{6, 7, 8}));
}

TEST_P(Arrays, CallsRunInOrder) {
    for (const std::size_t count : {5, 100003}) {
        Words wanted = counting(count);
        Shared last = put(wanted);
        for (int call = 0; call < 100; ++call) {
            last = added(last);
        }
        std::for_each(wanted.begin(), wanted.end(), [](auto& word) { word += 100; });
        EXPECT_EQ(words_of(last), wanted);
    }
    EXPECT_EQ(device_->statistics().calls, 200u);
}

TEST_P(Arrays, HostOperandsMayChangeOnReturn) {
    for (const std::size_t count : {7, 300007}) {
        Words words = counting(count);
        const Shared result = device_->allocate(count * 4, false);
        start(slow_plan(4), {}, {.storage = device_->allocate(4, false)});
        start(add_plan(count), {{.host = words.data()}}, {.storage = result});
        std::fill(words.begin(), words.end(), 0);
        EXPECT_EQ(words_of(result), plus_one(counting(count)));
    }
    EXPECT_EQ(device_->statistics().bytes_imported, 0u);
}

TEST_P(Arrays, OperandsMayHaveOddOffsetsAndSizes) {
    constexpr std::size_t kCount = 333;
    for (std::uint64_t from = 0; from < 6; ++from) {
        for (std::uint64_t to = 0; to < 6; ++to) {
            Bytes source = pattern(kCount * 4 + 8, 3);
            Bytes wanted = pattern(kCount * 4 + 8, 4);
            const Shared input = put(source);
            const Shared result = put(wanted);
            Plan plan = add_plan(kCount);
            plan.buffers[0].bytes = plan.buffers[2].bytes =
                kCount * 4 - to % 3;  // the rest of the last word belongs to other data
            start(plan, {{.storage = input, .offset = from}}, {.storage = result, .offset = to});
            Words words(kCount);
            std::memcpy(words.data(), source.data() + from, plan.buffers[0].bytes);
            words = plus_one(words);
            std::memcpy(wanted.data() + to, words.data(), plan.buffers[2].bytes);
            // Carries go upwards, so the other bytes of the last word cannot affect these.
            EXPECT_EQ(bytes_of(result), wanted) << from << " " << to;
            EXPECT_EQ(bytes_of(input), source);
        }
    }
}

TEST_P(Arrays, WaitingMayBeInterrupted) {
    const PollsAlways polls;
    const Shared result = device_->allocate(4, false);
    start(fold_plan(100), {}, {.storage = result});
    EXPECT_THROW(device_->wait(*result, [] { return true; }), Interrupted);
    EXPECT_THROW(device_->synchronize([] { return true; }), Interrupted);
    EXPECT_EQ(words_of(result), Words{fold(100)});
}

TEST_P(Arrays, LargerThanTheRing) {
    const std::size_t count = (vk::Ring::kBytes + 3 * vk::Ring::kPart) / 4 + 7;
    const Words words = counting(count);
    const Shared storage = put(words);
    EXPECT_TRUE(words_of(storage) == words);  // EXPECT_EQ would print them
    // Then use them in a synchronous call: y = 0, and then the last words of y are those of x plus 1.
    constexpr std::size_t kLast = 1000;
    Plan plan = add_plan(kLast);
    plan.buffers[0].bytes = plan.buffers[2].bytes = count * 4;
    auto first = std::get<Dispatch>(plan.steps[0]), second = std::get<Dispatch>(plan.steps[1]);
    first.push = make_block(AddPush{reference_to(0, (count - kLast) * 4), reference_to(1, 0), kLast, 0});
    second.push = make_block(AddPush{reference_to(1, 0), reference_to(2, (count - kLast) * 4), kLast, 0});
    plan.steps = {Clear{2}, first, second};
    Words wanted(count, 0);
    std::transform(words.end() - kLast, words.end(), wanted.end() - kLast, [](auto word) { return word + 1; });
    EXPECT_TRUE(run(*device_, plan, words) == wanted);
    EXPECT_TRUE(words_of(storage) == words);
}

TEST_P(Arrays, RefuseArgumentsThatTheBindingsNeverPass) {
    const auto message = [&](const std::vector<InputLocation>& inputs, const ResultLocation& result) {
        return message_of<Error>([&] { start(add_plan(100), inputs, result); });
    };
    const Shared storage = put(counting(100));
    const Shared result = device_->allocate(400, false);
    Words words(100);
    EXPECT_EQ(message({{.storage = storage}}, {.host = words.data()}),
              "[test] internal error: a call that does not wait cannot write a result to host memory");
    EXPECT_EQ(message({{.storage = storage, .offset = 1}}, {.storage = result}),
              "[test] internal error: a tensor extends beyond its storage");
    EXPECT_EQ(message({}, {.storage = result}), "[test] internal error: the arrays do not match the plan");
    const auto other = open_vulkan();
    EXPECT_EQ(message({{.storage = other->allocate(400, false)}}, {.storage = result}),
              "[test] internal error: storage of another device");
    EXPECT_EQ(words_of(added(storage)), plus_one(counting(100)));
}

TEST_P(Arrays, TooLargeAnArray) {
    const std::uint64_t before = device_->statistics().bytes_allocated;
    const std::uint64_t asked = std::uint64_t{1} << 50;
    try {
        device_->allocate(asked, false);
        FAIL();
    } catch (const MemoryError& error) {
        const std::string message = error.what();
        EXPECT_EQ(message.find("[Array] the array needs 1.0 PiB (1,125,899,906,842,624 bytes), "), 0u) << message;
        EXPECT_NE(message.find(" are available on " + device_->profile().name), std::string::npos) << message;
        EXPECT_EQ(error.asked, asked);
    }
    EXPECT_EQ(device_->statistics().bytes_allocated, before);
    EXPECT_EQ(words_of(put(Words{1, 2})), (Words{1, 2}));
}

TEST_P(Arrays, ThreadsSubmitAndWaitInAnyOrder) {
    const Shared shared = put(counting(5003));
    std::atomic<int> right = 0;
    std::atomic<bool> done = false;
    std::vector<std::thread> threads;
    for (std::size_t thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&, thread] {
            for (std::size_t round = 0; round < 20; ++round) {
                const Words words = counting(100 + thread * 1000 + round);
                Shared own = put(words), theirs = shared;
                for (int call = 0; call < 5; ++call) {
                    own = added(own);
                    theirs = added(theirs);
                }
                if (round % 3 == 0) {
                    device_->synchronize({});
                }
                const bool rest = words_of(theirs)[5002] == 5005u + 5 && words_of(own).back() == words.back() + 5;
                right += rest && run(*device_, add_plan(words.size()), words) == plus_one(words);
            }
        });
    }
    std::thread watcher([&] {
        while (!done) {
            EXPECT_GE(device_->statistics().bytes_allocated, shared->bytes());
            EXPECT_FALSE(device_->lost() || device_->closed());
            std::this_thread::yield();
        }
    });
    for (auto& thread : threads) {
        thread.join();
    }
    done = true;
    watcher.join();
    EXPECT_EQ(right, 80);
    EXPECT_EQ(device_->statistics().calls, 80u * 11);
}

}  // namespace
}  // namespace vkrnn::test
