// Which flavour a device gets, from what it says of itself.
#include <gtest/gtest.h>

#include "vkrnn/error.h"
#include "vkrnn/profile.h"

namespace vkrnn {
namespace {

Profile llvmpipe(const std::string& version, std::uint32_t subgroup_size) {
    Profile profile;
    profile.driver = "llvmpipe";
    profile.driver_version = version;
    profile.type = DeviceType::cpu;
    profile.subgroup_size = subgroup_size;
    return profile;
}

TEST(Flavour, FollowsLlvmpipesRelease) {
    const auto chosen = [](const std::string& version, std::uint32_t subgroup_size) {
        return choose_flavour(llvmpipe(version, subgroup_size)).gemm;
    };
    EXPECT_EQ(chosen("Mesa 22.3.6 (LLVM 15.0.6)", 8), "broadcast");
    EXPECT_EQ(chosen("Mesa 22.3.6 (LLVM 15.0.6)", 16), "broadcast");
    EXPECT_EQ(chosen("Mesa 22.3.6 (LLVM 15.0.6)", 4), "register");
    EXPECT_EQ(chosen("Mesa 25.0.7-2~bpo12+1 (LLVM 15.0.6)", 8), "broadcast");
    EXPECT_EQ(chosen("Mesa 25.0.7-2~bpo12+1 (LLVM 15.0.6)", 16), "register");  // computes wrongly
    EXPECT_EQ(chosen("Mesa 25.1.0", 8), "register");                           // not known
    EXPECT_EQ(chosen("Mesa 26.1.9", 8), "register");
    EXPECT_EQ(chosen("Mesa 26.2.6-1 (LLVM 22.1.8)", 8), "loops");
    EXPECT_EQ(chosen("Mesa 27.0.0-devel (git-0123456789)", 8), "loops");
    EXPECT_EQ(chosen("a release without a number", 8), "register");
    Profile other = llvmpipe("Mesa 26.2.6", 8);
    other.driver = "swiftshader";
    EXPECT_EQ(choose_flavour(other).gemm, "register");
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
    EXPECT_EQ(message(llvmpipe("Mesa 22.3.6", 8)),
              "[Device] gemm: expected 'register', 'broadcast' or 'loops', got 'vectors'");
    Profile wide = llvmpipe("Mesa 26.2.6", 8);
    wide.max_workgroup_invocations = 1024;
    EXPECT_EQ(message(wide), "[Device] gemm: expected 'register', 'tiled' or 'loops', got 'vectors'");
    Profile other = llvmpipe("Mesa 22.3.6", 8);
    other.driver = "swiftshader";
    EXPECT_EQ(message(other), "[Device] gemm: expected 'register', got 'vectors'");
}

}  // namespace
}  // namespace vkrnn
