// Copies between the tensors of a call's cell states, one for each state, and the one that kernels read and write. It
// has all states of a row and direction side by side.
#pragma once

#include <span>

#include "builder.h"

namespace vkrnn {

// Returns whether a call needs such copies.
inline bool has_cell_tensors(const Spec& spec) { return spec.cell_tensors().size() > 1; }

// Copies tensors to `joined`. Each has `rows` rows of D H elements; PlanBuilder::kZeros stands for one of zeros.
void join_cells(PlanBuilder& builder, const std::string& label, std::span<const std::size_t> tensors,
                std::size_t joined, std::int64_t rows);

// Returns the copy of state `number` from the joined tensor to its own, and adds those of all states.
RowCopy split_cell(const Spec& spec, std::size_t joined, std::size_t number, std::size_t tensor, std::int64_t rows);
void split_cells(PlanBuilder& builder, const std::string& label, std::size_t joined,
                 std::span<const std::size_t> tensors, std::int64_t rows);

}  // namespace vkrnn
