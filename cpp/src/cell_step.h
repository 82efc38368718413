// The dispatches of a cell's step kernels in the broadcast flavour.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "broadcast_pack.h"
#include "slab_products.h"
#include "time_loop.h"

namespace vkrnn {

// The cell's dispatches: where the tensors of each view of the abi lie.
class CellStep {
public:
    explicit CellStep(PlanBuilder& builder) : builder_(builder), spec_(builder.spec()) {}

    // How the kernels read a row: the part of their units, or all of it.
    enum Row : std::uint8_t { part = 1, whole = 0 };

    // [T, N, D * slots * H]
    void sequence(abi::uint view, std::size_t buffer, std::int64_t slots, Order order, Row read = part) {
        const std::int64_t row = spec_.D() * slots * spec_.H;
        for (std::int64_t d = 0; d < spec_.D(); ++d)
            set(view, d, builder_.at(buffer, row_order(spec_, order, d).first * spec_.N * row + d * slots * spec_.H),
                row, read);
    }
    // [N, D * slots * H]
    void state(abi::uint view, std::size_t buffer, std::int64_t slots = 1, Row read = part) {
        const std::int64_t each = slots * spec_.H;
        for (std::int64_t d = 0; d < spec_.D(); ++d)
            set(view, d, builder_.at(buffer, d * each), spec_.D() * each, read);
    }
    // [D, slots, H]
    void vector(abi::uint view, std::size_t buffer, std::int64_t slots) {
        for (std::int64_t d = 0; d < spec_.D(); ++d) set(view, d, builder_.at(buffer, d * slots * spec_.H), 0);
    }
    // What kernels without a product of their own add up.
    void slabs(const SlabProducts& products) {
        for (std::int64_t d = 0; d < spec_.D(); ++d)
            set(abi::kStepProduct, d, builder_.at(products.buffer(), d * products.slabs() * spec_.N * products.n()),
                products.n());
    }
    // The packed weights of one direction, of so many elements for each unit.
    void weights(std::int64_t direction, std::size_t packed, std::int64_t unit) {
        set(abi::kStepProduct, direction, builder_.at(packed, 0), 0, unit);
    }

    struct Options {
        StepTile tile;
        std::int64_t slabs = 0;
        std::uint32_t orders = 0, reads = 0;
        std::uint32_t phase = 0;  // see StepOptions
        bool keep = false;
        // Of the views that are stored, in the order of the shader's windows.
        std::vector<std::pair<abi::uint, std::size_t>> results = {};
    };

    // Of one step; where there are `steps`, of so many from there on, which z numbers.
    [[nodiscard]] std::vector<Dispatch> dispatches(const std::string& label, const std::string& driver,
                                                   const Options& options, std::int64_t direction, std::int64_t step,
                                                   std::int64_t steps = 0) const;

private:
    struct View {
        Place place = 0;                 // of step 0
        std::int64_t row = 0, unit = 0;  // elements from one batch row or unit to the next
    };

    void set(abi::uint view, std::int64_t direction, Place place, std::int64_t row, std::int64_t unit = 1) {
        views_[static_cast<std::size_t>(direction)][view] = {place, row, unit};
    }
    [[nodiscard]] bool backwards(Order order, std::int64_t direction) const {
        return row_order(spec_, order, direction).increment < 0;
    }

    PlanBuilder& builder_;
    const Spec& spec_;
    std::array<std::array<View, abi::kBroadcastViews>, 2> views_{};
};

}  // namespace vkrnn
