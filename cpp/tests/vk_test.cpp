// The Vulkan layer through its public face, with plans made by hand and kernels of the tests' own (shaders/): it is to
// work for any plan. Each test opens its own device, so that none depends on another.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <thread>

#ifndef _WIN32
#include <sys/wait.h>
#include <unistd.h>
#endif

#include "vkrnn/device.h"
#include "vkrnn/error.h"

namespace vkrnn {
namespace {

using Words = std::vector<std::uint32_t>;

struct AddPush {
    Place from, to;
    std::uint32_t count, padding;
};
struct FoldPush {
    Place params;
    std::int32_t step;
    std::uint32_t padding;
};

Dispatch add(std::size_t from, std::size_t to, std::size_t count, std::size_t kernel = 0) {
    const auto words = static_cast<std::uint32_t>(count);
    return {.label = "add",
            .kernel = kernel,
            .groups = {(words + 63) / 64, 1, 1},
            .push = make_block(AddPush{place(from, 0), place(to, 0), words, 0}, 2)};
}

PlanBuffer buffer(const char* name, Role role, std::uint64_t bytes, const Block& contents = {}) {
    return {name, role, bytes, contents};
}

Argument any() { return Argument::source; }  // the layer only looks at the buffer beside it

// result = input + 1, through a scratch buffer: input + 8, then - 7.
Plan add_plan(std::size_t count) {
    Plan plan;
    const std::uint64_t bytes = count * 4;
    plan.buffers = {buffer("x", Role::input, bytes), buffer("temporary", Role::scratch, bytes), buffer("y", Role::result, bytes)};
    plan.kernels = {{"add", {8}}, {"add", {static_cast<std::uint32_t>(-7)}}};
    plan.steps = {add(0, 1, count, 0), add(1, 2, count, 1)};
    plan.inputs = {{any(), 0}};
    plan.results = {2};
    return plan;
}

// state = fold over `count` steps that run from `first` by `increment`, from zero.
Plan fold_plan(std::int64_t count, std::int32_t first = 0, std::int32_t increment = 1) {
    Plan plan;
    plan.buffers = {buffer("state", Role::result, 4),
                    buffer("params", Role::constant, 8, make_block(place(0, 0), 1))};
    plan.kernels = {{"fold", {1}}};
    const Dispatch step{.label = "step", .push = make_block(FoldPush{place(1, 0), -1, 0}, 1)};
    plan.steps = {Clear{0}, Loop{count, first, increment, 8, {step}}};
    plan.results = {0};
    return plan;
}

std::uint32_t fold(std::int64_t count, std::int32_t first = 0, std::int32_t increment = 1) {
    std::uint32_t state = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        state = state * 5 + static_cast<std::uint32_t>(first + i * increment);
    }
    return state;
}

Words run(Device& device, const Plan& plan, const Words& input, const Poll& poll = {}) {
    Words result(plan.buffers.at(plan.results.at(0)).bytes / 4, 0xdeadbeef);
    const void* in[] = {input.data()};
    void* out[] = {result.data()};
    device.run(plan, std::span(in).first(plan.inputs.size()), out, "test", poll);
    return result;
}

Words counting(std::size_t count) {
    Words words(count);
    std::iota(words.begin(), words.end(), 3);
    return words;
}

Words plus_one(Words words) {
    for (auto& word : words) {
        ++word;
    }
    return words;
}

void expect_adds(Device& device, std::size_t count) {
    EXPECT_EQ(run(device, add_plan(count), counting(count)), plus_one(counting(count))) << count;
}

template <class Exception, class Function>
std::string message_of(const Function& function) {
    try {
        function();
    } catch (const Exception& error) {
        return error.what();
    }
    ADD_FAILURE() << "nothing was thrown";
    return {};
}

// An environment variable for as long as the object lives.
class Variable {
public:
    Variable(const char* name, const std::string& value) : name_(name) {
        const char* old = std::getenv(name);
        old_ = old != nullptr ? std::optional<std::string>(old) : std::nullopt;
        setenv(name, value.c_str(), 1);
    }
    ~Variable() {
        if (old_) {
            setenv(name_, old_->c_str(), 1);
        } else {
            unsetenv(name_);
        }
    }
    Variable(const Variable&) = delete;
    Variable& operator=(const Variable&) = delete;

private:
    const char* name_;
    std::optional<std::string> old_;
};

// Every test leaves the user's caches alone, and the validation layers, where they are on, without a word.
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

    const std::filesystem::path cache_ = std::filesystem::temp_directory_path() /
                                         ("vkrnn_test_" + std::to_string(std::hash<std::thread::id>{}(std::this_thread::get_id())));
    const Variable directory_{"VKRNN_CACHE_DIR", cache_.string()};
};

// The tests of what a call does go both ways: through mapped memory where the device has it, and through staging.
class Call : public Vulkan, public testing::WithParamInterface<bool> {
protected:
    const Variable staging_{"VKRNN_STAGING", GetParam() ? "1" : "0"};
    const std::shared_ptr<Device> device_ = Device::open(0);
};
INSTANTIATE_TEST_SUITE_P(Memory, Call, testing::Values(false, true),
                         [](const auto& instance) { return instance.param ? "staging" : "direct"; });

TEST_F(Vulkan, ListsDevicesBestFirst) {
    const auto profiles = list_devices();
    ASSERT_FALSE(profiles.empty());
    EXPECT_EQ(profiles.back().type == DeviceType::cpu, profiles.back().driver == "llvmpipe");
    for (const Profile& profile : profiles) {
        RecordProperty(profile.name, profile.driver_version);
        EXPECT_FALSE(profile.name.empty());
        EXPECT_FALSE(profile.driver_version.empty());
        EXPECT_GE(profile.api_version, "1.3");
        EXPECT_GE(profile.subgroup_size, 1u);
        EXPECT_GE(profile.max_group_count, 65535u);
        EXPECT_GE(profile.max_shared_memory, 16384u);
        EXPECT_GE(profile.max_push_constants, 128u);
        EXPECT_GE(profile.max_allocation, 1u << 30);
        EXPECT_GT(profile.memory_bytes, 0u);
    }
}

TEST_F(Vulkan, SaysWhichDevicesThereAre) {
    const std::string message = message_of<DeviceError>([] { Device::open(99); });
    EXPECT_EQ(message.find("there is no device 99: the last of "), 0u) << message;
}

TEST_F(Vulkan, TakesTheFlavourItIsGiven) {
    Flavour flavour;
    flavour.rows = 3;
    EXPECT_EQ(Device::open(0, flavour)->flavour(), flavour);
    const auto device = Device::open(0);
    EXPECT_EQ(device->flavour(), choose_flavour(device->profile()));
}

TEST_P(Call, CopiesInAndOut) {
    for (const std::size_t count : {1, 63, 64, 65, 997, 300007}) {
        expect_adds(*device_, count);
    }
    const Statistics statistics = device_->statistics();
    EXPECT_EQ(statistics.calls, 6u);
    EXPECT_EQ(statistics.submissions, 6u);
    EXPECT_EQ(statistics.dispatches, 12u);
    EXPECT_EQ(statistics.pipelines, 2u);
    EXPECT_EQ(statistics.bytes_uploaded, statistics.bytes_downloaded);
    EXPECT_GT(statistics.last_host_seconds, 0);
    EXPECT_LE(statistics.last_device_seconds, statistics.last_host_seconds);
}

TEST_P(Call, TakesEmptyBuffersAndPlans) {
    EXPECT_EQ(run(*device_, add_plan(0), {}), Words());
    Plan nothing;
    device_->run(nothing, {}, {}, "", {});
}

TEST_P(Call, RunsLoopsInOrder) {
    EXPECT_EQ(run(*device_, fold_plan(0), {}), Words{0});
    EXPECT_EQ(run(*device_, fold_plan(1, 42), {}), Words{42});
    EXPECT_EQ(run(*device_, fold_plan(101), {}), Words{fold(101)});
    EXPECT_EQ(run(*device_, fold_plan(101, 100, -1), {}), Words{fold(101, 100, -1)});
}

TEST_P(Call, SplitsLongLoops) {
    constexpr std::int64_t kSteps = 60000;
    EXPECT_EQ(run(*device_, fold_plan(kSteps, -7, 3), {}), Words{fold(kSteps, -7, 3)});
    const Statistics statistics = device_->statistics();
    EXPECT_EQ(statistics.dispatches, static_cast<std::uint64_t>(kSteps));
    EXPECT_GT(statistics.submissions, 1u);
}

TEST_P(Call, ClearsAfterAndBeforeDispatches) {
    // temporary = x + 8; temporary = 0; y = temporary - 7; then y again, from what was cleared after it was read.
    Plan plan = add_plan(1000);
    plan.steps = {plan.steps[0], Clear{1}, plan.steps[1]};
    EXPECT_EQ(run(*device_, plan, counting(1000)), Words(1000, static_cast<std::uint32_t>(-7)));
    plan.steps.emplace_back(Clear{2});
    EXPECT_EQ(run(*device_, plan, counting(1000)), Words(1000, 0));
}

TEST_P(Call, DispatchesThatDoNotWaitMayOverlap) {
    // Two independent halves of one result; the second does not wait for the first.
    Plan plan = add_plan(512);
    auto first = std::get<Dispatch>(plan.steps[0]);
    auto second = std::get<Dispatch>(plan.steps[1]);
    first.push = make_block(AddPush{place(0, 0), place(2, 0), 256, 0}, 2);
    second.push = make_block(AddPush{place(0, 1024), place(2, 1024), 256, 0}, 2);
    second.after = false;
    plan.steps = {first, second};
    const Words result = run(*device_, plan, Words(512, 10));
    EXPECT_EQ(result.front(), 18u);
    EXPECT_EQ(result.back(), 3u);
}

TEST_P(Call, StopsWhenPollSaysSo) {
    int asked = 0;
    const Poll stop = [&] { return ++asked == 2; };
    constexpr std::int64_t kSteps = 2'000'000;
    EXPECT_THROW(run(*device_, fold_plan(kSteps), {}, stop), Interrupted);
    EXPECT_EQ(asked, 2);
    EXPECT_LT(device_->statistics().dispatches, static_cast<std::uint64_t>(kSteps));
    expect_adds(*device_, 100);
}

TEST_P(Call, LetsThePollsExceptionsThrough) {
    const Poll fail = []() -> bool { throw std::domain_error("from poll"); };
    EXPECT_THROW(run(*device_, fold_plan(2'000'000), {}, fail), std::exception);
    expect_adds(*device_, 100);
}

TEST_P(Call, LostDevice) {
    expect_adds(*device_, 100);
    device_->lose_for_test();
    const auto add_one = [&] { run(*device_, add_plan(5), counting(5)); };
    EXPECT_FALSE(device_->lost());
    const std::string message = message_of<DeviceError>(add_one);
    EXPECT_EQ(message.find("[test] the device was lost: "), 0u) << message;
    EXPECT_NE(message.find("; open a new vkrnn.Device"), std::string::npos) << message;
    EXPECT_TRUE(device_->lost());
    EXPECT_EQ(message_of<DeviceError>(add_one),
              "[test] the device was lost in an earlier call; open a new vkrnn.Device");
    expect_adds(*Device::open(0), 100);
}

TEST_P(Call, ClosedDevice) {
    expect_adds(*device_, 100);
    device_->close();
    device_->close();
    EXPECT_TRUE(device_->closed());
    EXPECT_EQ(message_of<DeviceError>([&] { run(*device_, add_plan(5), counting(5)); }),
              "[test] the device is closed; open a new vkrnn.Device");
    const Statistics statistics = device_->statistics();
    EXPECT_EQ(statistics.calls, 1u);
    EXPECT_EQ(statistics.bytes_allocated, 0u);
    EXPECT_EQ(statistics.pipelines, 0u);
    expect_adds(*Device::open(0), 100);
}

TEST_P(Call, TooLargeACall) {
    Plan plan = add_plan(100);
    for (int i = 0; i < 4096; ++i) {
        plan.buffers.push_back(buffer("huge", Role::scratch, 1u << 30));
    }
    try {
        run(*device_, plan, counting(100));
        FAIL();
    } catch (const MemoryError& error) {
        const std::string message = error.what();
        EXPECT_EQ(message.find("[test] the call needs 4.0 TiB (4,398,046,512,"), 0u) << message;
        EXPECT_NE(message.find(" free on " + device_->profile().name), std::string::npos) << message;
        EXPECT_GT(error.asked, error.free);
        EXPECT_GT(error.free, 0u);
    }
    EXPECT_EQ(device_->statistics().bytes_allocated, 0u);
    expect_adds(*device_, 100);
}

TEST_P(Call, TooLargeATensor) {
    Plan plan = add_plan(100);
    const std::uint64_t limit = device_->profile().max_allocation;
    plan.buffers.push_back(buffer("projected", Role::scratch, limit + 4));
    const std::string message = message_of<MemoryError>([&] { run(*device_, plan, counting(100)); });
    // Where the limit of one allocation is beyond the memory there is, the other message comes first.
    EXPECT_TRUE(message.find("[test] projected needs ") == 0 || message.find("[test] the call needs ") == 0) << message;
    EXPECT_EQ(device_->statistics().bytes_allocated, 0u);
    expect_adds(*device_, 100);
}

TEST_P(Call, MoreThanOneAllocation) {
    const std::uint64_t limit = device_->profile().max_allocation;
    if (limit > std::uint64_t{4} << 30) {
        GTEST_SKIP() << "one allocation may have " << limit << " bytes";
    }
    Plan plan = add_plan(1000);
    for (int i = 0; i < 3; ++i) {
        plan.buffers.insert(plan.buffers.begin() + 2, buffer("large", Role::scratch, limit / 4 * 3));
    }
    plan.steps = {add(0, 2, 1000), add(2, 4, 1000, 1), add(4, 5, 1000, 1)};
    plan.results = {5};
    Words expected = counting(1000);
    for (auto& word : expected) {
        word -= 6;
    }
    try {
        EXPECT_EQ(run(*device_, plan, counting(1000)), expected);
    } catch (const MemoryError& error) {
        GTEST_SKIP() << error.what();
    }
    const auto held = device_->statistics().bytes_allocated;
    expect_adds(*device_, 100);
    EXPECT_EQ(run(*device_, plan, counting(1000)), expected);
    EXPECT_EQ(device_->statistics().bytes_allocated, held);
}

TEST_P(Call, MemoryStaysFlatOverMixedCalls) {
    std::uint64_t after_the_first_round = 0;
    for (std::size_t call = 0; call < 1000; ++call) {
        const std::size_t count = 1 + call * 7919 % 20011;
        if (call % 3 == 0) {
            EXPECT_EQ(run(*device_, fold_plan(3), {}), Words{fold(3)});
        } else {
            expect_adds(*device_, count);
        }
        if (call == 0) {
            expect_adds(*device_, 20011);
            after_the_first_round = device_->statistics().bytes_allocated;
        }
    }
    EXPECT_EQ(device_->statistics().bytes_allocated, after_the_first_round);
    EXPECT_EQ(device_->statistics().pipelines, 3u);
}

TEST_P(Call, ThreadsTakeTurns) {
    std::vector<std::thread> threads;
    std::atomic<int> right = 0;
    for (std::size_t thread = 0; thread < 4; ++thread) {
        threads.emplace_back([&, thread] {
            for (std::size_t call = 0; call < 25; ++call) {
                const Words words = counting(10 + thread * 1000 + call);
                right += run(*device_, add_plan(words.size()), words) == plus_one(words);
            }
        });
    }
    for (auto& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(right, 100);
}

TEST_P(Call, AThreadThatWaitsMayBeInterrupted) {
    std::atomic<bool> running = false, enough = false;
    std::thread other([&] {
        const Poll poll = [&] {
            running = true;
            return enough.load();
        };
        EXPECT_THROW(run(*device_, fold_plan(1'000'000'000), {}, poll), Interrupted);
    });
    while (!running) {
        std::this_thread::yield();
    }
    EXPECT_THROW(run(*device_, add_plan(5), counting(5), [] { return true; }), Interrupted);
    enough = true;
    other.join();
    expect_adds(*device_, 100);
}

TEST_P(Call, RefusesPlansThatContradictThemselves) {
    const auto refuses = [&](const Plan& plan) {
        const std::string message = message_of<Error>([&] { run(*device_, plan, counting(100)); });
        EXPECT_EQ(message.find("[test] internal error: "), 0u) << message;
    };
    Plan plan = add_plan(100);
    plan.kernels[0].shader = "nonesuch";
    EXPECT_EQ(message_of<Error>([&] { run(*device_, plan, counting(100)); }),
              "[test] internal error: there is no shader named 'nonesuch'");
    plan = add_plan(100);
    std::get<Dispatch>(plan.steps[0]).kernel = 7;
    refuses(plan);
    plan = add_plan(100);
    plan.steps[0] = add(0, 9, 100);
    refuses(plan);
    plan = add_plan(100);
    plan.steps.emplace_back(Clear{3});
    refuses(plan);
    plan = add_plan(100);
    plan.inputs[0].second = 1;
    refuses(plan);
    plan = add_plan(100);
    std::get<Dispatch>(plan.steps[0]).push.bytes.resize(132);
    refuses(plan);
    plan = fold_plan(3);
    std::get<Loop>(plan.steps[1]).counter = 16;
    refuses(plan);
    expect_adds(*device_, 100);
}

class PipelineCache : public Vulkan {
protected:
    // The one file of the cache; empty if there is none.
    [[nodiscard]] std::filesystem::path file() const {
        std::filesystem::path found;
        if (std::filesystem::exists(cache_)) {
            for (const auto& entry : std::filesystem::directory_iterator(cache_)) {
                EXPECT_TRUE(found.empty());
                found = entry.path();
            }
        }
        return found;
    }
    static void use_a_device() { expect_adds(*Device::open(0), 100); }
};

TEST_F(PipelineCache, IsWrittenAndReadAgain) {
    EXPECT_EQ(cache_directory(), cache_.string());
    EXPECT_TRUE(file().empty());
    use_a_device();
    ASSERT_FALSE(file().empty());
    EXPECT_GT(std::filesystem::file_size(file()), 32u);
    use_a_device();
}

TEST_F(PipelineCache, MayBeCorrupt) {
    use_a_device();
    const auto path = file();
    ASSERT_FALSE(path.empty());
    const auto size = std::filesystem::file_size(path);
    for (const std::uintmax_t length : {std::uintmax_t{0}, std::uintmax_t{7}, std::uintmax_t{40}, size - 1, size}) {
        std::ofstream(path, std::ios::binary) << std::string(length, '\x5a');
        use_a_device();
    }
    for (std::uintmax_t at = 0; at < size; at += std::max<std::uintmax_t>(1, size / 50)) {
        std::fstream stream(path, std::ios::binary | std::ios::in | std::ios::out);
        stream.seekp(static_cast<std::streamoff>(at));
        stream.put('\x77');
        stream.close();
        use_a_device();
    }
}

TEST_F(PipelineCache, MayBeImpossible) {
    std::ofstream(cache_.string()) << "a file where the folder should be";
    use_a_device();
    const Variable no_cache("VKRNN_CACHE_DIR", "");
    const Variable no_xdg("XDG_CACHE_HOME", "relative");
    const Variable no_home("HOME", "");
    EXPECT_EQ(cache_directory(), "");
    use_a_device();
}

TEST_F(PipelineCache, HasItsFolderWhereTheXdgSpecificationSays) {
    const Variable no_own("VKRNN_CACHE_DIR", "");
    const Variable home("HOME", "/home/someone");
    const Variable no_xdg("XDG_CACHE_HOME", "");
    EXPECT_EQ(cache_directory(), "/home/someone/.cache/vkrnn");
    const Variable xdg("XDG_CACHE_HOME", "/var/cache");
    EXPECT_EQ(cache_directory(), "/var/cache/vkrnn");
}

#ifndef _WIN32
TEST_F(Vulkan, AForkNeedsADeviceOfItsOwn) {
    const auto device = Device::open(0);
    expect_adds(*device, 100);
    const pid_t child = fork();
    if (child == 0) {
        try {
            run(*device, add_plan(5), counting(5));
        } catch (const DeviceError& error) {
            device->close();
            _exit(std::string(error.what()).find("after a fork") != std::string::npos ? 0 : 1);
        }
        _exit(2);
    }
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    expect_adds(*device, 100);
}
#endif

}  // namespace
}  // namespace vkrnn
