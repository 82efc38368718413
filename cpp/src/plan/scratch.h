// Places a plan's scratch buffers in memory so that those that are not needed together share it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "vkrnn/plan.h"

namespace vkrnn {

struct ScratchLayout {
    struct Spot {
        std::size_t piece;     // index into `pieces`
        std::uint64_t offset;  // in bytes
    };
    std::vector<Spot> spots;            // one for each requested buffer
    std::vector<std::uint64_t> pieces;  // sizes of the pieces of memory

    [[nodiscard]] std::uint64_t bytes() const;  // of all pieces
};

// Places these buffers of a plan. Two large buffers share memory if all steps that need the one are done, and visible,
// before any step that needs the other begins. A plan that converts a 16-bit type gains most: it has a float32 copy of
// each array, and few of these are needed at the same time. Buffers that are cleared lie beside each other, so that a
// device can do so with one command. Offsets are multiples of `alignment`. No piece is larger than `limit`, unless a
// single buffer is.
ScratchLayout place_scratch(const Plan& plan, std::span<const std::size_t> buffers, std::uint64_t alignment,
                            std::uint64_t limit);

// Moves the steps that clear scratch buffers to the front, where they need one barrier together.
void clear_first(Plan& plan);

// Returns how many bytes a call of the plan saves because scratch buffers share memory.
std::uint64_t shared_scratch(const Plan& plan, std::uint64_t limit);

}  // namespace vkrnn
