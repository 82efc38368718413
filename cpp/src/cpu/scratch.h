// Places a plan's scratch buffers in one piece of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "vkrnn/plan.h"

namespace vkrnn::cpu {

struct ScratchLayout {
    std::vector<std::uint64_t> offsets;  // in bytes, one for each requested buffer
    std::uint64_t bytes = 0;             // total size
};

// Places these buffers of a plan whose steps run one after the other. Large buffers share memory if no step needs both.
// A plan of a 16-bit type gains most: it has a float32 copy of each array, and few of these are needed at the same
// time.
ScratchLayout place_scratch(const Plan& plan, std::span<const std::size_t> buffers);

// Returns how many bytes a call of the plan saves because scratch buffers share memory.
std::uint64_t shared_bytes(const Plan& plan);

}  // namespace vkrnn::cpu
