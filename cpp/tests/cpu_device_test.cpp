// Tests the CPU device: whole calls, memory, cached prepacked weights, and calls that end early.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <thread>

#include "cpu/memory/cpu_memory.h"
#include "cpu/run/cpu_device.h"
#include "cpu_plans.h"
#include "forks.h"
#include "polls.h"
#include "vkrnn/error.h"

namespace vkrnn::cpu {
namespace {

class Cpu : public testing::Test {
protected:
    using Storages = std::vector<std::shared_ptr<Storage>>;

    std::shared_ptr<Storage> store(const std::vector<double>& values) {
        auto storage = device_->allocate(values.size() * sizeof(float), true);
        fill(storage, values);
        return storage;
    }
    void fill(const std::shared_ptr<Storage>& storage, const std::vector<double>& values) {
        const std::vector<float> narrow(values.begin(), values.end());
        device_->upload({.host = nullptr, .storage = storage}, narrow.data(), narrow.size() * sizeof(float), {});
    }
    std::vector<float> read(const std::shared_ptr<Storage>& storage) {
        std::vector<float> values(storage->bytes() / sizeof(float));
        device_->download(values.data(), {.host = nullptr, .storage = storage}, storage->bytes(), {});
        return values;
    }

    Storages store_all(const Plan& plan, const Arrays& arrays) {
        Storages storages;
        for (const auto& [argument, buffer] : plan.inputs) storages.push_back(store(arrays.at(argument)));
        return storages;
    }
    // Runs the plan and returns its first result.
    std::vector<float> run(const std::shared_ptr<const Plan>& plan, const Storages& inputs, const Poll& poll = {}) {
        std::vector<InputLocation> operands;
        for (const auto& input : inputs) operands.push_back({.host = nullptr, .storage = input});
        std::vector<ResultLocation> results;
        for (const std::size_t buffer : plan->results)
            results.push_back({.host = nullptr, .storage = device_->allocate(plan->buffers[buffer].bytes, false)});
        device_->run(plan, operands, results, true, {}, poll);
        return read(results.front().storage);
    }
    static void expect_near(const std::vector<float>& got, const std::vector<double>& expected) {
        ASSERT_EQ(got.size(), expected.size());
        for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(static_cast<double>(got[i]), expected[i], 2e-6) << i;
    }
    static std::size_t input_of(const Plan& plan, Argument argument) {
        for (std::size_t i = 0; i < plan.inputs.size(); ++i)
            if (plan.inputs[i].first == argument) return i;
        throw std::logic_error("no such input");
    }
    std::uint64_t dispatches_of(const std::shared_ptr<const Plan>& plan, const Storages& inputs) {
        const std::uint64_t before = device_->statistics().dispatches;
        run(plan, inputs);
        return device_->statistics().dispatches - before;
    }

    const std::shared_ptr<CpuDevice> device_ = std::make_shared<CpuDevice>(StrategyChoice{});
};

TEST_F(Cpu, RunsEveryCellForwardFromArraysAndFromTheHost) {
    for (const Spec& spec : all_cells({4, 3, 7, 21})) {
        const Arrays arrays = make_arrays(spec);
        const auto plan = device_->plan(spec);
        const auto expected = plain_output(spec, arrays);
        expect_near(run(plan, store_all(*plan, arrays)), expected);

        std::vector<std::vector<float>> inputs, results;
        std::vector<InputLocation> from;
        std::vector<ResultLocation> to;
        for (const auto& [argument, buffer] : plan->inputs)
            inputs.emplace_back(arrays.at(argument).begin(), arrays.at(argument).end());
        for (const auto& input : inputs) from.push_back({.host = input.data()});
        for (const std::size_t buffer : plan->results)
            results.emplace_back(plan->buffers[buffer].bytes / sizeof(float));
        for (auto& result : results) to.push_back({.host = result.data()});
        device_->run(plan, from, to, true, {}, {});
        expect_near(results.front(), expected);
    }
}

TEST_F(Cpu, IsListedAndOpenedByItsIndex) {
    const auto devices = list_devices(false);
    const auto found = std::ranges::find(devices, Backend::native, &Profile::backend);
    ASSERT_NE(found, devices.end());
    EXPECT_EQ(found->driver_version, chosen_target().name);
    const auto opened = Device::open(static_cast<std::size_t>(found - devices.begin()));
    EXPECT_EQ(opened->profile(), *found);
    EXPECT_THROW(Device::open(1000), DeviceError);
}

TEST_F(Cpu, PacksTheWeightsOfAnArrayOnce) {
    const Spec spec = learning_spec(CellKind::lstm, {2, 3, 7, 21});
    Arrays arrays = make_arrays(spec);
    const auto plan = device_->plan(spec);
    const auto inputs = store_all(*plan, arrays);
    const std::uint64_t all = dispatches_of(plan, inputs);
    EXPECT_EQ(all, 3u) << "packing of two weights, and the loop";
    EXPECT_EQ(dispatches_of(plan, inputs), 1u);
    EXPECT_EQ(dispatches_of(plan, inputs), 1u);

    // Changed weights are packed again.
    for (double& value : arrays[Argument::recurrent_weight]) value = -value;
    fill(inputs[input_of(*plan, Argument::recurrent_weight)], arrays[Argument::recurrent_weight]);
    EXPECT_EQ(dispatches_of(plan, inputs), 2u);
    expect_near(run(plan, inputs), plain_output(spec, arrays));

    // While a host view exists, which may write the weights unnoticed, every call packs them.
    {
        const HostView view(inputs[input_of(*plan, Argument::input_weight)]);
        EXPECT_EQ(dispatches_of(plan, inputs), 2u);
        EXPECT_EQ(dispatches_of(plan, inputs), 2u);
    }
    EXPECT_EQ(dispatches_of(plan, inputs), 2u);
    EXPECT_EQ(dispatches_of(plan, inputs), 1u);
}

TEST_F(Cpu, AnInterruptedCallThrowsAndTheNextIsRight) {
    const test::PollsAlways polls;
    const Spec spec = learning_spec(CellKind::gru, {300, 2, 32, 128});
    const Spec small = learning_spec(CellKind::gru, {3, 2, 5, 64});
    const Arrays arrays = make_arrays(spec), small_arrays = make_arrays(small);
    const auto plan = device_->plan(spec), small_plan = device_->plan(small);
    const auto inputs = store_all(*plan, arrays), small_inputs = store_all(*small_plan, small_arrays);
    for (const unsigned threads : {1U, 3U}) {
        const Threads allowed(threads);
        EXPECT_THROW(run(plan, inputs, [] { return true; }), Interrupted) << "threads " << threads;
        expect_near(run(small_plan, small_inputs), plain_output(small, small_arrays));
    }
}

TEST_F(Cpu, AClosedDeviceRunsNothing) {
    const Spec spec = learning_spec(CellKind::lstm, {2, 3, 7, 21});
    const auto plan = device_->plan(spec);
    const auto inputs = store_all(*plan, make_arrays(spec));
    device_->close();
    EXPECT_TRUE(device_->closed());
    EXPECT_THROW(run(plan, inputs), DeviceError);
    EXPECT_THROW(device_->allocate(10, false), DeviceError);
    EXPECT_NE(inputs.front()->host(), nullptr);
}

TEST_F(Cpu, ThrowsIfMemoryIsShort) {
    EXPECT_THROW(device_->allocate(std::uint64_t{1} << 46, false), MemoryError);
    EXPECT_THROW(device_->allocate(~std::uint64_t{0}, false), MemoryError);
    EXPECT_NO_THROW(device_->allocate(100, false));
}

TEST(Memory, ReusesFreedPieces) {
    Memory memory;
    for (const std::uint64_t bytes : {1U, 5000U, 100'000U, 10'000'000U}) {
        const Memory::Piece first = memory.take(bytes);
        EXPECT_GE(first.bytes, bytes);
        EXPECT_LE(first.bytes, bytes + bytes / 8 + 4096);
        EXPECT_EQ(address_of(first.data) % kAlignment, 0u);
        memory.give_back(first);
        const std::uint64_t held = memory.held();
        const Memory::Piece second = memory.take(bytes);
        EXPECT_EQ(second.data, first.data);
        EXPECT_EQ(memory.held(), held);
        memory.give_back(second);
        EXPECT_EQ(memory.unused(), memory.held());
    }
}

TEST(Memory, KeepsUnusedPiecesUpToALimit) {
    constexpr std::uint64_t kPiece = 150 << 20;
    Memory memory;
    std::vector<Memory::Piece> pieces;
    for (int i = 0; i < 5; ++i) pieces.push_back(memory.take(kPiece));
    EXPECT_GE(memory.held(), 5 * kPiece);
    for (const Memory::Piece& piece : pieces) {
        memory.give_back(piece);
        EXPECT_LE(memory.unused(), Memory::kMostUnused);
    }
    EXPECT_EQ(memory.held(), memory.unused());
    EXPECT_GE(memory.unused(), 3 * kPiece);
    // The most recently freed piece is still kept.
    EXPECT_EQ(memory.take(kPiece).data, pieces.back().data);
    system::free_memory(pieces.back().data);
}

TEST(Memory, KeepsFewUnusedPiecesAndDropsLargeOnesLast) {
    Memory memory;
    std::vector<Memory::Piece> pieces;
    const Memory::Piece large = memory.take(2 << 20);
    for (std::size_t i = 0; i < 2 * Memory::kMostPieces; ++i) pieces.push_back(memory.take(4));
    EXPECT_EQ(memory.held(), large.bytes + pieces.size() * kAlignment);
    memory.give_back(large);
    for (const Memory::Piece& piece : pieces) memory.give_back(piece);
    EXPECT_EQ(memory.unused(), large.bytes + (Memory::kMostPieces - 1) * kAlignment);
}

// The memory is never touched, so this takes no time.
TEST(Memory, HoldsLittleMoreThanThePeakUse) {
    constexpr std::uint64_t kMiB = 1 << 20;
    Memory memory;
    for (const std::uint64_t size : {200, 300, 400, 250, 350}) {
        memory.give_back(memory.take(size * kMiB));
        EXPECT_LE(memory.held(), 400 * kMiB * 3 / 2);
    }
    memory.give_back(memory.take(100 * kMiB));
    EXPECT_GT(memory.held(), 400 * kMiB);
}

TEST(Memory, CallsShareALargePiece) {
    constexpr std::uint64_t kMiB = 1 << 20;
    Memory memory;
    memory.give_back(memory.take(30 * kMiB, Memory::Use::brief));
    const Memory::Piece larger = memory.take(50 * kMiB, Memory::Use::brief);
    EXPECT_EQ(memory.held(), larger.bytes);
    memory.give_back(larger);
    EXPECT_EQ(memory.take(30 * kMiB, Memory::Use::brief).data, larger.data);
    memory.give_back(larger);
    // An array would keep the piece.
    const Memory::Piece array = memory.take(45 * kMiB);
    EXPECT_NE(array.data, larger.data);
    memory.give_back(array);
}

TEST(Memory, NoPieceIsUsedTwiceAtATime) {
    Memory memory;
    std::mutex mutex;
    std::set<std::byte*> taken;
    std::vector<std::thread> threads;
    for (unsigned thread = 0; thread < 4; ++thread)
        threads.emplace_back([&] {
            for (std::uint64_t i = 0; i < 300; ++i) {
                const Memory::Piece piece = memory.take(5000 + i % 3 * 9000);
                piece.data[0] = std::byte{1};
                {
                    const std::lock_guard lock(mutex);
                    EXPECT_TRUE(taken.insert(piece.data).second);
                }
                std::this_thread::yield();
                {
                    const std::lock_guard lock(mutex);
                    taken.erase(piece.data);
                }
                memory.give_back(piece);
            }
        });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(memory.held(), memory.unused());
}

// Keeps a prepacked copy with an array, as a call does.
std::shared_ptr<const PrepackedCopy> keep(const std::shared_ptr<Memory>& memory, HostStorage& storage,
                                          PrepackedKey key) {
    auto copy = std::make_shared<const PrepackedCopy>(memory, 8, storage.version().value());
    PrepackedCopies<PrepackedCopy>::List dropped;  // destroyed after the lock
    const std::lock_guard lock(memory->mutex());
    dropped = storage.copies().keep(std::move(key), copy);
    return copy;
}

// In a child forked while another thread allocated, AddressSanitizer of GCC 12 may wait for its own lock.
#if defined(VKRNN_HAS_FORKS) && !defined(__SANITIZE_ADDRESS__)
// Ends the child, with status 0 if it can use pieces that the parent's threads used at the time of the fork.
[[noreturn]] void use_after_fork(const std::shared_ptr<Memory>& memory, HostStorage& storage) {
    alarm(test::kHangs);
    const Lease lease(memory, 100);
    keep(memory, storage, {.offset = 0, .bytes = 8, .layout = {}});
    _exit(memory->held() == 0 ? 1 : 0);
}

TEST(Memory, WorksInAForkedChild) {
    const auto memory = std::make_shared<Memory>();
    HostStorage storage(memory, 8);
    std::atomic<bool> done = false;
    std::vector<std::thread> threads;
    for (std::uint64_t i = 0; i < 3; ++i)
        threads.emplace_back([&, i] {
            while (!done) {
                const Lease lease(memory, 100 * i);
                keep(memory, storage, {.offset = i, .bytes = 8, .layout = {}});
            }
        });
    int failures = 0;
    for (int i = 0; i < 100 && failures == 0; ++i) {
        const pid_t child = fork();
        if (child == 0) use_after_fork(memory, storage);
        int status = 0;
        waitpid(child, &status, 0);
        if (status != 0) ++failures;
    }
    done = true;
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(failures, 0);
}
#endif

TEST(HostStorages, KeepPrepackedCopiesOfTheirCurrentContents) {
    const auto memory = std::make_shared<Memory>();
    HostStorage storage(memory, 1000);
    const auto find = [&](const PrepackedKey& key) { return storage.copies().find(key, storage.prepacked_version()); };
    const PrepackedKey key{0, 1000, {8, 5}}, other{0, 1000, {4, 5}};
    EXPECT_EQ(find(key), nullptr);
    const auto copy = keep(memory, storage, key);
    EXPECT_EQ(find(key), copy);
    EXPECT_EQ(find(other), nullptr);
    EXPECT_EQ(find({500, 500, {8, 5}}), nullptr);
    storage.changed();
    EXPECT_EQ(find(key), nullptr);
    const auto next = keep(memory, storage, key);
    EXPECT_EQ(find(key), next);
    // Only the last few copies are kept.
    for (std::int64_t i = 0; i < 20; ++i) keep(memory, storage, {0, 1000, {i}});
    EXPECT_EQ(find(key), nullptr);
    EXPECT_NE(find({0, 1000, {19}}), nullptr);
}

}  // namespace
}  // namespace vkrnn::cpu
