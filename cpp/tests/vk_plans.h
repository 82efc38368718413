// Helpers of the Vulkan layer's tests: handmade plans with the tests' own kernels (shaders/), because the layer runs
// any plan.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <numeric>
#include <optional>
#include <thread>

#include "variables.h"
#include "vk/run/vulkan_devices.h"
#include "vkrnn/device.h"
#include "vkrnn/error.h"

namespace vkrnn::test {

using Words = std::vector<std::uint32_t>;

// Opens the best Vulkan device.
inline std::shared_ptr<Device> open_vulkan() { return vk::open(0, {}); }

struct AddPush {
    BufferReference from, to;
    std::uint32_t count, padding;
};
struct FoldPush {
    BufferReference params;
    std::int32_t step;
    std::uint32_t padding;
};

inline Dispatch add(std::size_t from, std::size_t to, std::size_t count, std::size_t kernel = 0) {
    const auto words = static_cast<std::uint32_t>(count);
    return {.label = "add",
            .kernel = kernel,
            .groups = {(words + 63) / 64, 1, 1},
            .push = make_block(AddPush{reference_to(from, 0), reference_to(to, 0), words, 0})};
}

inline PlanBuffer buffer(const char* name, Role role, std::uint64_t bytes, const Block& contents = {}) {
    return {name, role, bytes, contents};
}

inline Argument any() { return Argument::source; }  // the layer ignores the argument and only uses the buffer

// result = input + 1, through a scratch buffer: input + 8, then - 7.
inline Plan add_plan(std::size_t count) {
    Plan plan;
    const std::uint64_t bytes = count * 4;
    plan.buffers = {buffer("x", Role::input, bytes), buffer("temporary", Role::scratch, bytes),
                    buffer("y", Role::result, bytes)};
    plan.kernels = {{"add", {8}}, {"add", {static_cast<std::uint32_t>(-7)}}};
    plan.steps = {add(0, 1, count, 0), add(1, 2, count, 1)};
    plan.inputs = {{any(), 0}};
    plan.results = {2};
    return plan;
}

// state = fold over `count` steps that run from `first` by `increment`, from zero.
inline Plan fold_plan(std::int64_t count, std::int32_t first = 0, std::int32_t increment = 1) {
    Plan plan;
    plan.buffers = {buffer("state", Role::result, 4),
                    buffer("params", Role::constant, 8, make_block(reference_to(0, 0)))};
    plan.kernels = {{"fold", {1}}};
    const Dispatch step{.label = "step", .push = make_block(FoldPush{reference_to(1, 0), -1, 0}), .counter = 8};
    plan.steps = {Clear{0}, Loop{count, first, increment, {step}}};
    plan.results = {0};
    return plan;
}

inline std::uint32_t fold(std::int64_t count, std::int32_t first = 0, std::int32_t increment = 1) {
    std::uint32_t state = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        state = state * 5 + static_cast<std::uint32_t>(first + i * increment);
    }
    return state;
}

inline Words run(Device& device, const Plan& plan, const Words& input, const Poll& poll = {}) {
    Words result(plan.buffers.at(plan.results.at(0)).bytes / 4, 0xdeadbeef);
    const InputLocation in[] = {{input.data()}};
    const ResultLocation out[] = {{result.data()}};
    device.run(std::make_shared<const Plan>(plan), std::span(in).first(plan.inputs.size()), out, true, "test", poll);
    return result;
}

inline Words counting(std::size_t count) {
    Words words(count);
    std::iota(words.begin(), words.end(), 3);
    return words;
}

inline Words plus_one(Words words) {
    for (auto& word : words) {
        ++word;
    }
    return words;
}

inline void expect_adds(Device& device, std::size_t count) {
    EXPECT_EQ(run(device, add_plan(count), counting(count)), plus_one(counting(count))) << count;
}

template <class Exception, class Function>
std::string message_of(const Function& function) {
    try {
        function();
    } catch (const Exception& error) {
        return error.what();
    }
    ADD_FAILURE() << "no exception was thrown";
    return {};
}

// Gives each test its own pipeline cache, and fails a test if the validation layers report something.
class Vulkan : public testing::Test {
protected:
    void TearDown() override {
        for (const auto& message : validation_messages()) {
            if (std::find(seen().begin(), seen().end(), message) == seen().end()) {
                seen().push_back(message);
                ADD_FAILURE() << message;
            }
        }
        std::filesystem::remove_all(cache_);
    }
    static std::vector<std::string>& seen() {
        static std::vector<std::string> messages;
        return messages;
    }

    const std::filesystem::path cache_ =
        std::filesystem::temp_directory_path() /
        ("vkrnn_test_" + std::to_string(std::hash<std::thread::id>{}(std::this_thread::get_id())));
    const Variable directory_{"VKRNN_CACHE_DIR", cache_.string()};
};

// Runs a test twice: with device memory that the host can map, if the device has any, and with memory that it cannot
// map.
class EitherMemory : public Vulkan, public testing::WithParamInterface<bool> {
protected:
    using Shared = std::shared_ptr<Storage>;
    using SharedPlan = std::shared_ptr<const Plan>;

    void write(const Shared& to, const Words& words) {
        device_->upload({.host = nullptr, .storage = to}, words.data(), words.size() * 4, {});
    }
    Words read(const Shared& from) {
        Words words(from->bytes() / 4);
        device_->download(words.data(), {.host = nullptr, .storage = from}, from->bytes(), {});
        return words;
    }

    const Variable staging_{"VKRNN_STAGING", GetParam() ? "1" : "0"};
    std::shared_ptr<Device> device_ = open_vulkan();
};

}  // namespace vkrnn::test
