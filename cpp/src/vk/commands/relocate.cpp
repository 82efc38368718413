#include "vk/commands/relocate.h"

#include "run/buffer_references.h"

namespace vkrnn::vk {

void relocate(const Block& block, std::span<const Slice> placements, std::byte* to) {
    copy_with_addresses(block, placements.size(), to, [&](std::size_t buffer) { return placements[buffer].address; });
}

}  // namespace vkrnn::vk
