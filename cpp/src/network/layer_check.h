// Checks layers whose weights stay on a device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "vkrnn/stream.h"

namespace vkrnn {

// Checks layers that feed each other, and returns the specs of calls of one time step without initial states. Throws
// TypeError or ValueError.
std::vector<Spec> check_layers(std::span<const StreamLayer> layers, std::int64_t batch);

// Returns the beginning of messages about a layer: "[lstm 'layer 0'] ".
std::string layer_prefix(const StreamLayer& layer, std::size_t number);

}  // namespace vkrnn
