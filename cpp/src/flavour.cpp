#include <algorithm>
#include <bit>

#include "vkrnn/profile.h"

namespace vkrnn {

Flavour choose_flavour(const Profile& profile) {
    Flavour flavour;
    if (profile.type == DeviceType::cpu) {
        // One invocation is one SIMD lane: barriers are slow there and a subgroup is a whole workgroup's worth of work.
        flavour.gemm = "register";
        flavour.lanes = 1;
        flavour.rows = 8;
        flavour.workgroup = profile.subgroup_size;
    } else {
        flavour.gemm = "tiled";
        flavour.lanes = profile.subgroup_clustered ? std::bit_floor(std::clamp(profile.subgroup_size, 1u, 32u)) : 1;
        flavour.rows = 4;
        flavour.workgroup = std::min(128u, profile.max_workgroup_size_x);
    }
    return flavour;
}

}  // namespace vkrnn
