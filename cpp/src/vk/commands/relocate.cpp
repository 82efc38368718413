#include "vk/commands/relocate.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace vkrnn::vk {

void relocate(const Block& block, std::span<const Slice> placements, std::byte* to) {
    if (block.places * sizeof(Place) > block.bytes.size()) {
        throw std::out_of_range("a block has more buffer references than bytes");
    }
    std::copy(block.bytes.begin(), block.bytes.end(), to);
    for (std::size_t i = 0; i < block.places; ++i) {
        const Place at = place_at(block, i);
        if (place_buffer(at) >= placements.size()) {
            throw std::out_of_range("a reference to a buffer that the plan does not have");
        }
        const std::uint64_t address = placements[place_buffer(at)].address + place_offset(at);
        std::memcpy(to + i * sizeof(address), &address, sizeof(address));
    }
}

}  // namespace vkrnn::vk
