#include "cell_tensors.h"

namespace vkrnn {
namespace {

// Returns the copy of state `number` from its tensor to the joined one.
RowCopy copy_of(const Spec& spec, std::size_t tensor, std::size_t joined, std::size_t number, std::int64_t rows) {
    const std::int64_t H = spec.H, row = tensor == PlanBuilder::kZeros ? 0 : H;
    return {{tensor, 0, row}, {joined, static_cast<std::int64_t>(number) * H, spec.C() * H}, rows * spec.D(), H};
}

}  // namespace

void join_cells(PlanBuilder& builder, const std::string& label, std::span<const std::size_t> tensors,
                std::size_t joined, std::int64_t rows) {
    for (std::size_t i = 0; i < tensors.size(); ++i)
        builder.copy_rows(label, copy_of(builder.spec(), tensors[i], joined, i, rows), i > 0);
}

void split_cells(PlanBuilder& builder, const std::string& label, std::size_t joined,
                 std::span<const std::size_t> tensors, std::int64_t rows) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
        RowCopy copy = copy_of(builder.spec(), tensors[i], joined, i, rows);
        std::swap(copy.from, copy.to);
        builder.copy_rows(label, copy, i > 0);
    }
}

}  // namespace vkrnn
