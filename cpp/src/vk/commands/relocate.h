// Replaces the buffer references in a plan's blocks by device addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "vk/memory/allocation.h"
#include "vkrnn/plan.h"

namespace vkrnn::vk {

// Copies the block to `to`; each place in it becomes the address of the slice that its buffer is bound to. Throws
// std::out_of_range if the plan has no such buffer.
void relocate(const Block& block, std::span<const Slice> placements, std::byte* to);

}  // namespace vkrnn::vk
