// What a user can get wrong about layers whose weights are kept.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "vkrnn/stream.h"

namespace vkrnn {

// Returns the specs of calls of one time step of layers that feed each other; none has initial states. Throws TypeError
// or ValueError.
std::vector<Spec> check_layers(std::span<const StreamLayer> layers, std::int64_t batch);

// "[lstm 'layer 0'] ": how messages about a layer begin.
std::string layer_prefix(const StreamLayer& layer, std::size_t number);

}  // namespace vkrnn
