// Plans of networks: the work of a call of several layers, each fed by the one below, in one plan.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "vkrnn/plan.h"

namespace vkrnn {

// Everything about a call of a network that changes its work. All layers have the same T, N, dtype and lengths. The I
// of each layer but the first is the D H of the layer below it.
struct NetworkSpec {
    std::vector<Spec> layers;
    std::vector<bool> between{};  // by layer: whether a mask multiplies its output before the next layer reads it
    std::size_t first = 0;        // gradients: the first layer whose gradients are computed
    auto operator<=>(const NetworkSpec&) const = default;
};

// The mask [T, N, D H] between a layer and the next one.
struct Between {
    auto operator<=>(const Between&) const = default;
};

// An argument or a result of a network's call. In a forward call, the results of a layer are Outputs. In a gradient
// call, an Output is what the forward call has kept, and the results are the gradients of Arguments.
struct NetworkTensor {
    std::size_t layer = 0;
    std::variant<Argument, Output, Between> what;
    auto operator<=>(const NetworkTensor&) const = default;
};

// Returns what an argument of a layer's call is in its network.
NetworkTensor tensor_of(Argument argument, std::size_t layer);

struct NetworkPlan {
    std::shared_ptr<const Plan> plan;  // its spec is that of the first layer
    // One for each of plan->inputs and plan->results. All layers share the lengths, which are those of layer 0.
    std::vector<NetworkTensor> inputs, results;
};

// Returns the plan of a call of one layer.
using PlanOf = std::function<std::shared_ptr<const Plan>(const Spec&)>;

// Returns the plan of a network's call, made from the plans of its layers. Without wavefronts, the results have the
// bits of one call for each layer; a lane's loop may have another shape. A forward call returns the last states of all
// layers if the specs ask for them, and of layers with training states all that the gradient call needs. A gradient
// call returns the gradient of the source only if the first layer takes part. `wavefront`: the steps of a piece if
// layers run as a wavefront, 0 if they run one after the other; not given, what is faster by the estimates.
NetworkPlan make_network_plan(const NetworkSpec& spec, const Profile& profile, const PlanOf& plan_of,
                              std::optional<std::int64_t> wavefront = {});

}  // namespace vkrnn
