// Checks layers whose weights stay on a device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "vkrnn/network_layer.h"

namespace vkrnn {

// Checks layers that feed each other, and returns the specs of calls of one time step without initial states, with
// joined cells. Throws
// TypeError or ValueError.
std::vector<Spec> check_layers(std::span<const NetworkLayer> layers, std::int64_t batch);

// Returns the beginning of messages about a layer: "[lstm 'layer 0'] ".
std::string layer_prefix(const NetworkLayer& layer, std::size_t number);

}  // namespace vkrnn
