// Which flavour a device gets, from what it says of itself, and which it may be given.
#include <gtest/gtest.h>

#include "vkrnn/error.h"
#include "vkrnn/profile.h"

namespace vkrnn {
namespace {

Profile profile_of(DeviceType type, std::uint32_t subgroup_size, std::uint32_t invocations) {
    Profile profile;
    profile.type = type;
    profile.subgroup_size = subgroup_size;
    profile.max_workgroup_invocations = profile.max_workgroup_size_x = invocations;
    return profile;
}

TEST(Flavour, SuitsTheDevice) {
    const Flavour gpu = choose_flavour(profile_of(DeviceType::discrete_gpu, 32, 1024));
    EXPECT_EQ(gpu.gemm, "tiled");
    EXPECT_EQ(gpu.lanes, 32u);
    EXPECT_EQ(gpu.workgroup, 128u);
    const Flavour small = choose_flavour(profile_of(DeviceType::integrated_gpu, 64, 128));
    EXPECT_EQ(small.gemm, "register") << "a tile takes more invocations than a workgroup has";
    EXPECT_EQ(small.lanes, 32u);
    const Flavour cpu = choose_flavour(profile_of(DeviceType::cpu, 8, 1024));
    EXPECT_EQ(cpu.gemm, "register");
    EXPECT_EQ(cpu.lanes, 1u);
    EXPECT_EQ(cpu.rows, 8u);
    EXPECT_EQ(cpu.workgroup, 8u);
}

TEST(Flavour, IsOneThatTheDeviceHas) {
    const auto message = [](const Profile& profile) -> std::string {
        Flavour flavour = choose_flavour(profile);
        flavour.gemm = "vectors";
        try {
            check_flavour(flavour, profile);
        } catch (const ValueError& error) {
            return error.what();
        }
        return "";
    };
    EXPECT_EQ(message(profile_of(DeviceType::cpu, 8, 128)), "[Device] gemm: expected 'register', got 'vectors'");
    EXPECT_EQ(message(profile_of(DeviceType::cpu, 8, 1024)),
              "[Device] gemm: expected 'register' or 'tiled', got 'vectors'");
}

}  // namespace
}  // namespace vkrnn
