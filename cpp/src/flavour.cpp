#include <algorithm>
#include <bit>
#include <string>

#include "abi.h"
#include "vkrnn/error.h"
#include "vkrnn/profile.h"

namespace vkrnn {
namespace {

bool can_tile(const Profile& profile) { return profile.max_workgroup_invocations >= abi::kTiledInvocations; }

bool is_native(const Profile& profile) { return profile.driver == kNativeDriver; }

void require(bool holds, const std::string& option, const std::string& expected, const std::string& got) {
    if (!holds) {
        throw ValueError("[Device] " + option + ": expected " + expected + ", got " + got);
    }
}

}  // namespace

Flavour choose_flavour(const Profile& profile) {
    Flavour flavour;
    if (is_native(profile)) return {"loop", kNativeGemm, profile.subgroup_size, 1, 1};
    if (profile.type == DeviceType::cpu) {
        // One invocation is one SIMD lane: barriers are slow there and a subgroup is a whole workgroup's worth of work.
        flavour.gemm = "register";
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
    if (is_native(profile)) {
        const Flavour only = choose_flavour(profile);
        const auto require_number = [](const char* option, std::uint32_t expected, std::uint32_t got) {
            require(expected == got, option, std::to_string(expected), std::to_string(got));
        };
        require(flavour.schedule == only.schedule, "schedule", "'" + only.schedule + "'", "'" + flavour.schedule + "'");
        require(flavour.gemm == only.gemm, "gemm", "'" + only.gemm + "'", "'" + flavour.gemm + "'");
        require_number("lanes", only.lanes, flavour.lanes);
        require_number("rows", only.rows, flavour.rows);
        require_number("workgroup", only.workgroup, flavour.workgroup);
        return;
    }
    require(flavour.schedule == "steps", "schedule", "'steps'", "'" + flavour.schedule + "'");
    const bool tiles = can_tile(profile);
    require(flavour.gemm == "register" || (tiles && flavour.gemm == "tiled"), "gemm",
            tiles ? "'register' or 'tiled'" : "'register'", "'" + flavour.gemm + "'");
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
