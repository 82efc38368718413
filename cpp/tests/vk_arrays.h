// The test suite of storages and asynchronous calls of the Vulkan layer. Every file that includes it runs the suite's
// tests in both kinds of memory.
#pragma once

#include <gtest/gtest.h>

#include "vk_plans.h"

namespace vkrnn::test {

using Bytes = std::vector<unsigned char>;

// Returns bytes that differ from one seed to another.
inline Bytes pattern(std::size_t count, unsigned seed = 1) {
    Bytes bytes(count);
    for (std::size_t i = 0; i < count; ++i) {
        bytes[i] = static_cast<unsigned char>(((i + seed) * 2654435761u) >> 13);
    }
    return bytes;
}

// Runs a test twice: with device memory that the host can map, if the device has any, and with memory that it cannot
// map.
class Arrays : public Vulkan, public testing::WithParamInterface<bool> {
protected:
    using Shared = std::shared_ptr<Storage>;

    Shared put(const void* data, std::uint64_t bytes) {
        auto storage = device_->allocate(bytes, true);
        device_->upload({.host = nullptr, .storage = storage}, data, bytes, {});
        return storage;
    }
    Shared put(const Words& words) { return put(words.data(), words.size() * 4); }
    Shared put(const Bytes& bytes) { return put(bytes.data(), bytes.size()); }

    Bytes bytes_of(const Shared& storage, std::uint64_t offset, std::uint64_t count) {
        Bytes bytes(count, 0xEE);
        device_->download(bytes.data(), {.host = nullptr, .storage = storage, .offset = offset}, count, {});
        return bytes;
    }
    Bytes bytes_of(const Shared& storage) { return bytes_of(storage, 0, storage->bytes()); }
    Words words_of(const Shared& storage) {
        Words words(storage->bytes() / 4, 0xdeadbeef);
        device_->download(words.data(), {.host = nullptr, .storage = storage}, words.size() * 4, {});
        return words;
    }

    // Submits a call and does not wait for it.
    void start(const Plan& plan, const std::vector<InputLocation>& inputs, const ResultLocation& result,
               const char* label = "test", const Poll& poll = {}) {
        device_->run(std::make_shared<const Plan>(plan), inputs, std::span(&result, 1), false, label, poll);
    }
    Shared added(const Shared& input, const char* label = "test") {
        auto result = device_->allocate(input->bytes(), false);
        start(add_plan(input->bytes() / 4), {{.storage = input}}, {.storage = result}, label);
        return result;
    }
    // Returns a plan that takes some time.
    static Plan slow_plan(std::uint64_t result_bytes, std::int64_t steps = 4000) {
        Plan plan = fold_plan(steps);
        plan.buffers[0].bytes = result_bytes;
        return plan;
    }

    const Variable staging_{"VKRNN_STAGING", GetParam() ? "1" : "0"};
    std::shared_ptr<Device> device_ = open_vulkan();
    const bool mapped_ = device_->profile().unified_memory && !GetParam();
};
INSTANTIATE_TEST_SUITE_P(Memory, Arrays, testing::Values(false, true),
                         [](const auto& instance) { return instance.param ? "staging" : "direct"; });

}  // namespace vkrnn::test
