// Chooses which layers of a network run as the lanes of a wavefront.
#pragma once

#include "vkrnn/network_plan.h"

namespace vkrnn {

// Consecutive layers that are lanes of one wavefront.
struct LaneGroup {
    std::size_t first, count;
};

struct Lanes {
    std::int64_t piece_steps = 0;
    std::vector<LaneGroup> groups{};
};

// Joins the plans of layers. Those of a group run as a wavefront.
NetworkPlan join_layers(const NetworkSpec& spec, const Lanes& lanes, const Profile& profile, const PlanOf& plan_of);

}  // namespace vkrnn
