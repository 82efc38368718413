// Places the scratch buffers of a plan in one piece of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "vkrnn/plan.h"

namespace vkrnn::cpu {

struct ScratchLayout {
    std::vector<std::uint64_t> offsets;  // bytes, one for each buffer that was asked for
    std::uint64_t bytes = 0;             // of all together
};

// Places these buffers of a plan whose steps run one after the other. Large buffers share memory if no step needs both:
// a plan of a 16-bit type has a float32 copy of each array, of which few are needed at the same time.
ScratchLayout place_scratch(const Plan& plan, std::span<const std::size_t> buffers);

// Returns how much memory a call of the plan needs less than all buffers together, because some of them share it.
std::uint64_t shared_bytes(const Plan& plan);

}  // namespace vkrnn::cpu
