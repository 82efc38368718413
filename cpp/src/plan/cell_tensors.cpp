#include "cell_tensors.h"

namespace vkrnn {
namespace {

// Returns the rows of state `number` in the joined tensor.
RowCopy::Place place_of(const Spec& spec, std::size_t joined, std::size_t number) {
    return {joined, static_cast<std::int64_t>(number) * spec.H, spec.C() * spec.H};
}

}  // namespace

RowCopy split_cell(const Spec& spec, std::size_t joined, std::size_t number, std::size_t tensor, std::int64_t rows) {
    return {place_of(spec, joined, number), {tensor, 0, spec.H}, rows * spec.D(), spec.H};
}

void join_cells(PlanBuilder& builder, const std::string& label, std::span<const std::size_t> tensors,
                std::size_t joined, std::int64_t rows) {
    const Spec& spec = builder.spec();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        const RowCopy::Place from{tensors[i], 0, tensors[i] == PlanBuilder::kZeros ? 0 : spec.H};
        builder.copy_rows(label, {from, place_of(spec, joined, i), rows * spec.D(), spec.H}, i > 0);
    }
}

void split_cells(PlanBuilder& builder, const std::string& label, std::size_t joined,
                 std::span<const std::size_t> tensors, std::int64_t rows) {
    for (std::size_t i = 0; i < tensors.size(); ++i)
        builder.copy_rows(label, split_cell(builder.spec(), joined, i, tensors[i], rows), i > 0);
}

}  // namespace vkrnn
