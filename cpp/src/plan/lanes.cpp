// Chooses between one layer after the other and wavefronts, by the estimated times of the joined plans.
#include "lanes.h"

#include <algorithm>
#include <optional>

#include "plan/builder.h"
#include "plan/cost_table.h"
#include "vkrnn/error.h"

namespace vkrnn {
namespace {

constexpr std::int64_t kLeastSteps = 8;  // of a piece
constexpr std::int64_t kPieces[] = {4, 8, 16, 32};
constexpr std::int64_t kCpuPieces = 32, kLeastCpuSteps = 16;
// The memory that a wavefront may take in addition: a tenth of what the layers need one after the other, or a small
// part of the device's.
constexpr std::uint64_t kGrowth = 10, kSmallPart = 64;

// Returns whether layer `l` can be the lane above or below layer l - 1. Its steps then need, in their order, what the
// other layer's steps make.
bool joins(const NetworkSpec& spec, std::size_t l) {
    const auto runs_forward = [&](std::size_t i) {
        const Spec& layer = spec.layers[i];
        return layer.D() == 1 && !layer.descriptor.has(Flag::reverse) && layer.has(Argument::input_weight) &&
               layer.input_heads() == 1;
    };
    return runs_forward(l - 1) && runs_forward(l) && spec.layers[l].N > 0 && !spec.layers[l].packed();
}

// Returns all layers that can be lanes, in groups of at most `most`.
std::vector<LaneGroup> groups_of(const NetworkSpec& spec, std::size_t most) {
    std::vector<LaneGroup> groups;
    for (std::size_t first = spec.first; first < spec.layers.size();) {
        std::size_t end = first + 1;
        while (end < spec.layers.size() && end - first < most && joins(spec, end)) ++end;
        if (end - first > 1) groups.push_back({first, end - first});
        first = end;
    }
    return groups;
}

double time_of(const Plan& plan) { return plan.loop_microseconds + plan.products_microseconds; }

}  // namespace

NetworkPlan make_network_plan(const NetworkSpec& spec, const Profile& profile, const PlanOf& plan_of,
                              std::optional<std::int64_t> wavefront) {
    NetworkPlan best = join_layers(spec, {}, profile, plan_of);
    const std::shared_ptr<const Plan> in_turn = best.plan;
    // Returns the plan with that of one layer after the other, for calls that cannot use its wavefronts.
    const auto with_in_turn = [&](NetworkPlan made) {
        auto plan = std::make_shared<Plan>(*made.plan);
        plan->in_turn = {in_turn};
        made.plan = std::move(plan);
        return made;
    };
    const std::int64_t T = spec.layers.front().T;
    // Returns nothing if the layers cannot run so.
    const auto joined = [&](const Lanes& lanes) -> std::optional<NetworkPlan> {
        if (lanes.groups.empty() || lanes.piece_steps >= T) return std::nullopt;
        try {
            return join_layers(spec, lanes, profile, plan_of);
        } catch (const NotImplementedError&) {  // the device has no strategy that runs in pieces
            return std::nullopt;
        }
    };
    // The CPU decides in each call whether layers run as a wavefront, because that depends on its threads.
    const bool decides = profile.backend == Backend::native;
    const std::uint64_t bytes = best.plan->peak_bytes();
    const std::uint64_t most_bytes = bytes + std::max(bytes / kGrowth, profile.memory_bytes / kSmallPart);
    if (wavefront || decides) {
        if (wavefront == 0) return best;
        const std::int64_t steps = wavefront.value_or(std::max(kLeastCpuSteps, ceil_div(T, kCpuPieces)));
        std::optional<NetworkPlan> made = joined({steps, groups_of(spec, spec.layers.size())});
        if (!made || (!wavefront && made->plan->peak_bytes() > most_bytes)) return best;
        return wavefront ? std::move(*made) : with_in_turn(std::move(*made));
    }
    if (profile.type == DeviceType::cpu) return best;  // Vulkan on a CPU
    double least = costs_of(profile).lanes.most_time * time_of(*best.plan);
    for (std::size_t most = spec.layers.size(); most > 1; most = most == 2 ? 1 : (most + 1) / 2)
        for (const std::int64_t pieces : kPieces) {
            const std::int64_t steps = ceil_div(T, pieces);
            if (steps < kLeastSteps) break;
            std::optional<NetworkPlan> made = joined({steps, groups_of(spec, most)});
            if (!made || time_of(*made->plan) >= least || made->plan->peak_bytes() > most_bytes) continue;
            least = time_of(*made->plan);
            best = std::move(*made);
        }
    return best.plan == in_turn ? best : with_in_turn(std::move(best));
}

}  // namespace vkrnn
