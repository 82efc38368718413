// Copies in the broadcast flavour, into the panels that its kernels read and out of them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <numeric>
#include <string>

#include "broadcast_tile.h"

namespace vkrnn {

// Sets the push constant through which kernels read the numbers of workgroups and subgroups.
template <typename Push>
void set_table(Push& push) {
    std::iota(std::begin(push.table), std::end(push.table), 0u);
}

inline std::uint32_t word(std::int64_t value) { return static_cast<std::uint32_t>(value); }
inline std::int64_t round_up(std::int64_t value, std::int64_t multiple) { return ceil_div(value, multiple) * multiple; }

// Of elements of a row: kernels count the bytes that a dispatch spans in 32 bits.
inline constexpr std::int64_t kLargestRow = std::int64_t{1} << 20;

// Whether vectors so many elements apart can be stored to the place in a window.
bool fits_window(const PlanBuilder& builder, Place to, std::initializer_list<std::int64_t> strides);

// A matrix as panels; what a panel has beyond the matrix becomes zero.
struct Copy {
    std::int64_t rows, columns;              // of the source
    std::int64_t row_stride, column_stride;  // of the source
    std::int64_t width, out_rows, out_row;   // of a panel
    std::int64_t panels, out_panel;
};
void copy(PlanBuilder& builder, const std::string& label, Place from, Place to, const Copy& what, bool independent);

// Copies rows of `columns` elements that begin `row` elements apart in both places.
void copy_rows(PlanBuilder& builder, const std::string& label, Place from, Place to, std::int64_t rows,
               std::int64_t columns, std::int64_t row);

// B(n, k) of a product as panels.
struct Panels {
    std::size_t buffer = 0;
    std::int64_t count = 0, depth = 0;  // panels of 2 * lanes columns; rows
};

Panels pack_panels(PlanBuilder& builder, const std::string& label, const Matrix& b, std::int64_t n, std::int64_t k,
                   std::int64_t depth_multiple, bool independent);

// The matrices of a step kernel that forms the product, and as it reads them: element (j, k) of slot s is at offset + s
// * slot + j * row + k * column.
struct SlotMatrices {
    std::size_t buffer = 0;
    std::int64_t offset = 0, slot = 0, row = 0, column = 0;
};
std::size_t pack_slots(PlanBuilder& builder, const SlotMatrices& matrices, std::int64_t slots, std::int64_t k,
                       const StepTile& tile);

}  // namespace vkrnn
