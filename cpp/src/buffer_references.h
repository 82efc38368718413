// Replaces the buffer references in a plan's blocks by device addresses.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "vkrnn/plan.h"

namespace vkrnn {

// Copies the block to `to` and replaces each buffer reference in it. `address_of` returns the address of each of the
// plan's `buffers`. Throws std::out_of_range if the plan has no such buffer.
template <class AddressOf>
void copy_with_addresses(const Block& block, std::size_t buffers, std::byte* to, const AddressOf& address_of) {
    if (block.references * sizeof(BufferReference) > block.bytes.size())
        throw std::out_of_range("a block has more buffer references than bytes");
    std::copy(block.bytes.begin(), block.bytes.end(), to);
    for (std::size_t i = 0; i < block.references; ++i) {
        const BufferReference at = reference_at(block, i);
        if (referenced_buffer(at) >= buffers)
            throw std::out_of_range("a reference to a buffer that the plan does not have");
        const std::uint64_t address = address_of(referenced_buffer(at)) + referenced_offset(at);
        std::memcpy(to + i * sizeof(address), &address, sizeof(address));
    }
}

}  // namespace vkrnn
