// Replaces the buffer references in a plan's blocks by device addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "vk/memory/allocation.h"
#include "vkrnn/plan.h"

namespace vkrnn::vk {

// Copies the block to `to` and replaces each buffer reference in it by the address of that buffer's slice. Throws
// std::out_of_range if the plan has no such buffer.
void relocate(const Block& block, std::span<const Slice> placements, std::byte* to);

}  // namespace vkrnn::vk
