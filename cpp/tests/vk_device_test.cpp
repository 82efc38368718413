// Tests listing and opening devices, the pipeline cache on disk, and forks.
#include <gtest/gtest.h>

#include <fstream>

#include "forks.h"
#include "vk/device/physical_device.h"
#include "vk_plans.h"
#include "vkrnn/environment.h"

namespace vkrnn::test {
namespace {

TEST_F(Vulkan, ListsDevicesBestFirst) {
    const auto profiles = vk::list();
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

TEST_F(Vulkan, ReportsAnUnknownDevice) {
    const std::string message = message_of<DeviceError>([] { Device::open(99); });
    EXPECT_TRUE(message.starts_with("expected a device from 0 to ")) << message;
    EXPECT_TRUE(message.ends_with(", got 99")) << message;
}

TEST_F(Vulkan, PlansWithFixedParameters) {
    Spec spec;
    spec.descriptor = default_descriptor(CellKind::single_gate_rnn);
    spec.T = spec.N = spec.I = spec.H = 1;
    EXPECT_EQ(vk::open(0, {"", "", {{"rows", 3}}})->plan(spec)->choice.parameters.at("rows"), 3u);
    const auto device = open_vulkan();
    EXPECT_EQ(*device->plan(spec), make_plan(spec, device->profile()));
}

TEST(MemoryType, IsOneThatTheBufferCanHave) {
    using Flag = vk::MemoryPropertyFlagBits;
    vk::PhysicalDeviceMemoryProperties memory{.memoryTypeCount = 3};
    memory.memoryTypes[0].propertyFlags = Flag::eHostVisible | Flag::eHostCoherent;
    memory.memoryTypes[1].propertyFlags = memory.memoryTypes[2].propertyFlags = Flag::eDeviceLocal;
    EXPECT_EQ(vk::memory_type(memory, Flag::eDeviceLocal), 1U);
    EXPECT_EQ(vk::memory_type(memory, Flag::eDeviceLocal, 0b101), 2U);
    EXPECT_EQ(vk::memory_type(memory, Flag::eDeviceLocal, 0b001), std::nullopt);
}

TEST(MemoryType, IsUnifiedIfItIsLocalCoherentAndCached) {
    using Flag = vk::MemoryPropertyFlagBits;
    const auto local = Flag::eDeviceLocal | Flag::eHostVisible;
    vk::PhysicalDeviceMemoryProperties memory{.memoryTypeCount = 2};  // coherent or cached, as on some phones
    memory.memoryTypes[0].propertyFlags = local | Flag::eHostCoherent;
    memory.memoryTypes[1].propertyFlags = local | Flag::eHostCached;
    EXPECT_FALSE(vk::has_unified_memory(DeviceType::integrated_gpu, memory));
    memory.memoryTypes[memory.memoryTypeCount++].propertyFlags = local | Flag::eHostCoherent | Flag::eHostCached;
    EXPECT_TRUE(vk::has_unified_memory(DeviceType::integrated_gpu, memory));
    EXPECT_TRUE(vk::has_unified_memory(DeviceType::cpu, memory));
    EXPECT_FALSE(vk::has_unified_memory(DeviceType::discrete_gpu, memory));
}

class PipelineCache : public Vulkan {
protected:
    // Returns the only file of the cache, or an empty path.
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
    static void use_a_device() { expect_adds(*open_vulkan(), 100); }
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

TEST_F(PipelineCache, MayBeUnwritable) {
    std::ofstream(cache_.string()) << "a file in place of the folder";
    use_a_device();
    const Variable no_cache("VKRNN_CACHE_DIR", "");
    const Variable no_xdg("XDG_CACHE_HOME", "relative");
    const Variable no_home("HOME", "");
    EXPECT_EQ(cache_directory(), "");
    use_a_device();
}

TEST_F(PipelineCache, FollowsTheXdgSpecification) {
    const Variable no_own("VKRNN_CACHE_DIR", "");
    const Variable home("HOME", "/home/someone");
    const Variable no_xdg("XDG_CACHE_HOME", "");
    EXPECT_EQ(cache_directory(), "/home/someone/.cache/vkrnn");
    const Variable xdg("XDG_CACHE_HOME", "/var/cache");
    EXPECT_EQ(cache_directory(), "/var/cache/vkrnn");
}

#ifdef VKRNN_HAS_FORKS
TEST_F(Vulkan, AForkedChildNeedsItsOwnDevice) {
    const auto device = open_vulkan();
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
}  // namespace vkrnn::test
