// Where the places in a plan's blocks are in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "vk/memory/allocation.h"
#include "vkrnn/plan.h"

namespace vkrnn::vk {

// Copies the block to `to` with its places replaced by addresses. Throws std::out_of_range for a buffer that is not.
void resolve(const Block& block, std::span<const Slice> placements, std::byte* to);

}  // namespace vkrnn::vk
