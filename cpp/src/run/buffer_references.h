// Replaces the buffer references in a plan's blocks by device addresses.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>

#include "vkrnn/plan.h"

namespace vkrnn {

// Copies the block to `to` and replaces each buffer reference in it. `address_of` returns the address of each of the
// plan's `buffers`; references to one at 0, which kernels do not need, become 0. Throws std::out_of_range if the plan
// has no such buffer.
template <class AddressOf>
void copy_with_addresses(const Block& block, std::size_t buffers, std::byte* to, const AddressOf& address_of) {
    if (block.references * sizeof(BufferReference) > block.bytes.size())
        throw std::out_of_range("a block has more buffer references than bytes");
    std::copy(block.bytes.begin(), block.bytes.end(), to);
    for (std::size_t i = 0; i < block.references; ++i) {
        const BufferReference at = reference_at(block, i);
        if (referenced_buffer(at) >= buffers)
            throw std::out_of_range("a reference to a buffer that the plan does not have");
        const std::uint64_t begin = address_of(referenced_buffer(at));
        const std::uint64_t address = begin == 0 ? 0 : begin + referenced_offset(at);
        std::memcpy(to + i * sizeof(address), &address, sizeof(address));
    }
}

// Returns the constant buffer with the parameters of a time loop, whose address the push constants of the loop's
// dispatches begin with; none for other dispatches. Throws std::out_of_range if the parameters are a part of a buffer.
inline std::optional<std::size_t> loop_parameters(const Plan& plan, const Dispatch& dispatch) {
    if (dispatch.push.references == 0) return std::nullopt;
    const BufferReference first = reference_at(dispatch.push, 0);
    if (plan.buffers.at(referenced_buffer(first)).role != Role::constant) return std::nullopt;
    if (referenced_offset(first) != 0) throw std::out_of_range(dispatch.label + ": parameters within a buffer");
    return referenced_buffer(first);
}

}  // namespace vkrnn
