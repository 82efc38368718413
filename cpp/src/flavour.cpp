#include <algorithm>
#include <bit>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "abi.h"
#include "vkrnn/error.h"
#include "vkrnn/profile.h"

namespace vkrnn {
namespace {

bool can_tile(const Profile& profile) { return profile.max_workgroup_invocations >= abi::kTiledInvocations; }

using Release = std::pair<int, int>;

// Of Mesa, where the device is llvmpipe.
std::optional<Release> llvmpipe(const Profile& profile) {
    Release found;
    if (profile.driver != "llvmpipe" ||
        std::sscanf(profile.driver_version.c_str(), "Mesa %d.%d", &found.first, &found.second) != 2)
        return std::nullopt;
    return found;
}

// Releases of llvmpipe that make vector code of what is written for them; later ones crash or are slow on it.
bool can_broadcast(const Profile& profile) {
    const auto release = llvmpipe(profile);
    return (release == Release{22, 3} || release == Release{25, 0}) &&
           (profile.subgroup_size == 8 || (profile.subgroup_size > 8 && suits_wide_vectors(profile)));
}

// Right everywhere, but written for vectors.
bool can_loop(const Profile& profile) { return llvmpipe(profile) && profile.subgroup_size >= 8; }

// Releases that see which numbers are uniform wherever they come from.
bool loops_well(const Profile& profile) { return can_loop(profile) && llvmpipe(profile) >= Release{26, 2}; }

bool can_run(std::string_view gemm, const Profile& profile) {
    return gemm == "register" || (gemm == "tiled" && can_tile(profile)) ||
           (gemm == "broadcast" && can_broadcast(profile)) || (gemm == "loops" && can_loop(profile));
}

// The products' flavours that the device has, as an error message lists them.
std::string gemm_flavours(const Profile& profile) {
    std::string found = "'register'";
    std::string last;
    for (const char* name : {"tiled", "broadcast", "loops"}) {
        if (!can_run(name, profile)) continue;
        if (!last.empty()) found += ", " + last;
        last = "'" + std::string(name) + "'";
    }
    return last.empty() ? found : found + " or " + last;
}

void require(bool holds, const std::string& option, const std::string& expected, const std::string& got) {
    if (!holds) {
        throw ValueError("[Device] " + option + ": expected " + expected + ", got " + got);
    }
}

}  // namespace

bool suits_wide_vectors(const Profile& profile) { return llvmpipe(profile) == Release{22, 3}; }

Flavour choose_flavour(const Profile& profile) {
    Flavour flavour;
    if (profile.type == DeviceType::cpu) {
        // One invocation is one SIMD lane: barriers are slow there and a subgroup is a whole workgroup's worth of work.
        flavour.gemm = can_broadcast(profile) ? "broadcast" : loops_well(profile) ? "loops" : "register";
        flavour.lanes = 1;
        flavour.rows = std::min(8u, profile.subgroup_size);
        flavour.workgroup = profile.subgroup_size;
    } else {
        flavour.gemm = can_tile(profile) ? "tiled" : "register";
        flavour.lanes = std::min(32u, profile.subgroup_size);
        flavour.rows = 4;
        flavour.workgroup = std::max(128u, profile.subgroup_size);
    }
    return flavour;
}

void check_flavour(const Flavour& flavour, const Profile& profile) {
    const std::uint32_t subgroup = profile.subgroup_size;
    require(flavour.schedule == "steps", "schedule", "'steps'", "'" + flavour.schedule + "'");
    require(can_run(flavour.gemm, profile), "gemm", gemm_flavours(profile), "'" + flavour.gemm + "'");
    require(std::has_single_bit(flavour.lanes) && flavour.lanes <= subgroup, "lanes",
            "a power of two up to the subgroup's " + std::to_string(subgroup), std::to_string(flavour.lanes));
    // With one lane, the subgroup loads a row of the operand per invocation.
    const std::uint32_t rows = flavour.lanes == 1 ? subgroup : abi::kMaxRows;
    require(flavour.rows >= 1 && flavour.rows <= rows, "rows", "1 to " + std::to_string(rows),
            std::to_string(flavour.rows));
    const std::uint32_t largest = std::min(profile.max_workgroup_invocations, profile.max_workgroup_size_x);
    require(flavour.workgroup >= subgroup && flavour.workgroup % subgroup == 0 && flavour.workgroup <= largest,
            "workgroup",
            "a multiple of the subgroup's " + std::to_string(subgroup) + " up to " + std::to_string(largest),
            std::to_string(flavour.workgroup));
}

}  // namespace vkrnn
