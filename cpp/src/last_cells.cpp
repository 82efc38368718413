#include "vkrnn/last_cells.h"

#include <algorithm>
#include <string>

#include "vkrnn/error.h"

namespace vkrnn {
namespace {

// `Bits` is the unsigned integer of the elements' size. The sign is not looked at: a negative zero is zero, too.
template <class Bits>
bool any(const Bits* row, std::int64_t count) {
    Bits found = 0;
    for (std::int64_t i = 0; i < count; ++i) found = static_cast<Bits>(found | static_cast<Bits>(row[i] << 1));
    return found != 0;
}

template <class Bits>
bool copy(const CellGradients& all, Bits* last) {
    const auto* row = static_cast<const Bits*>(all.data);
    bool others = false;
    for (std::int64_t t = 0; t < all.T; ++t) {
        for (std::int64_t n = 0; n < all.N; ++n) {
            const std::int64_t length = all.lengths.empty() ? all.T : all.lengths[static_cast<std::size_t>(n)];
            for (std::int64_t d = 0; d < all.D; ++d, row += all.H) {
                const std::int64_t end = d == 0 ? length - 1 : 0;  // the second direction ends at the first step
                if (t >= length) continue;
                if (t == end) {
                    std::copy_n(row, all.H, last + (n * all.D + d) * all.H);
                } else {
                    others = others || any(row, all.H);
                }
            }
        }
    }
    return !others;
}

}  // namespace

void copy_last_cells(const CellGradients& gradients, void* last, std::string_view where) {
    const bool copied = gradients.element_bytes == 2   ? copy(gradients, static_cast<std::uint16_t*>(last))
                        : gradients.element_bytes == 8 ? copy(gradients, static_cast<std::uint64_t*>(last))
                                                       : copy(gradients, static_cast<std::uint32_t*>(last));
    if (!copied) refuse_other_cells(where);
}

void refuse_other_cells(std::string_view where) {
    throw NotImplementedError(std::string(where) +
                              " cell_output: vkrnn has gradients of the cells after each direction's last step only");
}

}  // namespace vkrnn
