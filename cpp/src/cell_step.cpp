#include "cell_step.h"

#include <algorithm>

namespace vkrnn {

std::vector<Dispatch> CellStep::dispatches(const std::string& label, const std::string& driver, const Options& options,
                                           std::int64_t direction, std::int64_t step, std::int64_t steps) const {
    const std::int64_t lanes = builder_.profile().subgroup_size;
    const StepTile& tile = options.tile;
    const std::int64_t row_tiles = spec_.N / tile.rows, unit_tiles = spec_.H / (tile.vectors * lanes);
    std::vector<std::uint32_t> constants = cell_constants(spec_, abi::kBroadcastStepConstants);
    constants[abi::kLocalSize] = static_cast<std::uint32_t>(lanes);
    constants[abi::kLanes] = static_cast<std::uint32_t>(std::min(tile.subgroups, kTable));
    constants[abi::kMoreSubgroups] = static_cast<std::uint32_t>(ceil_div(tile.subgroups, kTable));
    constants[abi::kRows] = static_cast<std::uint32_t>(tile.rows);
    constants[abi::kTileVectors] = static_cast<std::uint32_t>(tile.vectors);
    constants[abi::kTileDepth] = static_cast<std::uint32_t>(tile.depth);
    constants[abi::kPhase] = options.phase;
    constants[abi::kKeep] = options.keep;
    constants[abi::kSlabs] = static_cast<std::uint32_t>(options.slabs);
    constants[abi::kOrders] = options.orders | (spec_.D() > 1 ? abi::kTwoDirections : 0) |
                              (backwards(Order::source, direction) ? abi::kSourceBackwards : 0) |
                              (backwards(Order::output, direction) ? abi::kOutputBackwards : 0);
    constants[abi::kReads] = options.reads;
    constants[abi::kUnits] = static_cast<std::uint32_t>(spec_.H);
    std::vector<std::size_t> windows;
    for (const auto& [view, buffer] : options.results) windows.push_back(buffer);
    windows = builder_.windows(std::move(windows));
    constants[abi::kInWindows] = !windows.empty();
    const std::size_t kernel =
        broadcast_kernel(builder_, std::string(spec_.cell().shader) + "_broadcast_" + driver, std::move(constants));

    std::vector<Dispatch> made;
    for (std::int64_t row = 0; row < row_tiles; row += kTable)
        for (std::int64_t unit = 0; unit < unit_tiles;) {
            const std::int64_t y = std::min(kTable, unit_tiles - unit);
            const std::int64_t more = steps > 0 ? 1 : std::min(kTable, (unit_tiles - unit) / y);
            abi::BroadcastStepPush push{};
            for (std::size_t view = 0; view < abi::kBroadcastViews; ++view) {
                const View& at = views_[static_cast<std::size_t>(direction)][view];
                const std::int64_t before = row * tile.rows * at.row + unit * tile.vectors * lanes * at.unit;
                push.at[view] = at.place + static_cast<Place>(before) * sizeof(float);
            }
            for (const auto& [view, buffer] : options.results)
                if (!windows.empty()) push.at[view] |= kInWindow;
            push.step = static_cast<std::int32_t>(step);
            push.N = static_cast<std::uint32_t>(spec_.N);
            set_table(push);
            made.push_back({label,
                            kernel,
                            {static_cast<std::uint32_t>(std::min(kTable, row_tiles - row)),
                             static_cast<std::uint32_t>(y), static_cast<std::uint32_t>(steps > 0 ? steps : more)},
                            make_block(push, abi::kBroadcastStepPlaces),
                            row + unit == 0,
                            windows,
                            static_cast<std::uint32_t>(tile.subgroups),
                            more > 1 ? 2 : 1,
                            kNoBuffer,
                            abi::kBroadcastCounter});
            unit += y * more;
        }
    return made;
}

}  // namespace vkrnn
