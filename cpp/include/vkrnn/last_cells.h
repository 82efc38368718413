// The gradients of an LSTM's cells: lstm_gradients takes those of the cells after each direction's last step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace vkrnn {

// The gradients of all cells, [T, N, D H], as frameworks have them: C-contiguous, of a floating-point type.
struct CellGradients {
    const void* data = nullptr;
    std::int64_t T = 0, N = 0, D = 1, H = 0;
    std::size_t element_bytes = 4;          // 2, 4 or 8; the address is a multiple of it
    std::span<const std::int64_t> lengths;  // of the N batch rows, each from 0 to T; empty: all are T
};

// Copies the gradients of the cells after each direction's last step to `last`, [N, D H]. Skips steps beyond a row's
// length, where cells are constant. Throws NotImplementedError if a gradient of another step is not zero. `where`
// begins the message.
void copy_last_cells(const CellGradients& gradients, void* last, std::string_view where);

// Throws that error.
[[noreturn]] void refuse_other_cells(std::string_view where);

}  // namespace vkrnn
