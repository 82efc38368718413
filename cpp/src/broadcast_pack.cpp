#include "broadcast_pack.h"

#include <algorithm>
#include <numeric>

namespace vkrnn {
namespace {

constexpr std::int64_t kMostVectors = 8;  // of a panel

void copy_elements(PlanBuilder& builder, const std::string& label, Place from, Place to, const Copy& what,
                   bool independent) {
    abi::PackPush push{};
    push.in_ = from;
    push.out_ = to;
    push.in_row = what.row_stride;
    push.in_column = what.column_stride;
    push.out_panel = what.out_panel;
    push.rows = word(what.rows);
    push.columns = word(what.columns);
    push.width = word(what.width);
    push.out_rows = word(what.out_rows);
    push.out_row = word(what.out_row);
    const std::int64_t groups = ceil_div(what.width * what.out_rows, abi::kElementwiseGroup);
    builder.dispatch(label, builder.kernel("pack", {}), builder.groups(groups, what.panels),
                     make_block(push, abi::kPackPlaces), independent);
}

// A workgroup's share: rows of one panel, or of several where these lie side by side in the source, so that it reads
// longer parts of that.
struct Share {
    std::int64_t vectors, panels, rows;
};

Share share_of(const PlanBuilder& builder, const Copy& what) {
    constexpr std::int64_t kSideBySide = 8;  // vectors
    const std::int64_t vectors = what.width / std::int64_t{builder.profile().subgroup_size};
    const std::int64_t most = what.column_stride == 1 ? std::max<std::int64_t>(kSideBySide / vectors, 1) : 1;
    const std::int64_t panels = std::gcd(what.panels, most);
    return {vectors, panels, abi::kPackRows / (vectors * panels)};
}

// Whole runs of rows of whole panels, of which there are so many.
void copy_runs(PlanBuilder& builder, const std::string& label, Place from, Place to, const Copy& what,
               std::int64_t runs, bool independent) {
    const Share share = share_of(builder, what);
    const std::size_t kernel = broadcast_kernel(
        builder, "pack_broadcast",
        {builder.profile().subgroup_size, word(share.vectors), word(share.panels), what.column_stride == 1});
    const auto bytes = [](std::int64_t elements) { return elements * static_cast<std::int64_t>(sizeof(float)); };
    const std::vector<std::size_t> windows = builder.windows({place_buffer(to)});
    struct Axis {
        std::int64_t count, in, out;  // elements
    };
    Axis xy{what.panels / share.panels, share.panels * what.width * what.column_stride, share.panels * what.out_panel};
    Axis z{runs, share.rows * what.row_stride, share.rows * what.out_row};
    // Along what lies side by side in the source.
    if (what.column_stride > what.row_stride) std::swap(xy, z);
    for (std::int64_t first = 0; first < xy.count;) {
        const std::int64_t x = std::min(kTable, xy.count - first), y = std::min(kTable, (xy.count - first) / x);
        for (std::int64_t first_z = 0; first_z < z.count; first_z += kTable) {
            abi::PackRunsPush push{};
            push.in_ = from + static_cast<Place>(bytes(first * xy.in + first_z * z.in));
            push.out_ = to + static_cast<Place>(bytes(first * xy.out + first_z * z.out));
            if (!windows.empty()) push.out_ |= kInWindow;
            push.in_row = word(bytes(what.row_stride));
            push.in_column = word(bytes(what.column_stride));
            push.out_row = word(bytes(what.out_row));
            push.out_panel = word(bytes(what.out_panel));
            push.in_xy = word(bytes(xy.in));
            push.out_xy = word(bytes(xy.out));
            push.in_z = word(bytes(z.in));
            push.out_z = word(bytes(z.out));
            set_table(push);
            builder.add(Dispatch{label,
                                 kernel,
                                 {word(x), word(y), word(std::min(kTable, z.count - first_z))},
                                 make_block(push, abi::kPackPlaces),
                                 !independent && first + first_z == 0,
                                 windows});
        }
        first += x * y;
    }
}

// A copy from one place in a buffer to another, in elements.
struct Part {
    std::int64_t from, to;
    Copy what;
};

std::size_t pack(PlanBuilder& builder, std::string name, const std::string& label, std::size_t from,
                 std::int64_t elements, const std::vector<Part>& parts, bool independent) {
    std::vector<std::int64_t> layout;
    for (const auto& [start, to, what] : parts)
        layout.insert(layout.end(), {start, to, what.rows, what.columns, what.row_stride, what.column_stride,
                                     what.width, what.out_rows, what.out_row, what.panels, what.out_panel});
    return builder.packed(std::move(name), elements, from, std::move(layout), [&](std::size_t packed) {
        for (const auto& [start, to, what] : parts)
            copy(builder, label, builder.at(from, start), builder.at(packed, to), what, independent);
    });
}

}  // namespace

// Whether vectors so many elements apart can be stored to the place in a window.
bool fits_window(const PlanBuilder& builder, Place to, std::initializer_list<std::int64_t> strides) {
    constexpr std::int64_t kElements = abi::kWindowBytes / sizeof(float);
    return !builder.windows({place_buffer(to)}).empty() && place_offset(to) % abi::kWindowBytes == 0 &&
           std::all_of(strides.begin(), strides.end(), [](std::int64_t stride) { return stride % kElements == 0; });
}

void copy(PlanBuilder& builder, const std::string& label, Place from, Place to, const Copy& what, bool independent) {
    const std::int64_t lanes = builder.profile().subgroup_size, most = kMostVectors * lanes;
    const bool panels = what.columns == what.width * what.panels && what.width % lanes == 0 && what.width <= most &&
                        std::max(what.row_stride, what.column_stride) <= kLargestRow &&
                        (builder.flavour().loops() || fits_window(builder, to, {what.out_row, what.out_panel}));
    const std::int64_t run = panels ? share_of(builder, what).rows : 1;
    const std::int64_t runs = panels ? what.rows / run : 0, done = runs * run;
    if (runs > 0) copy_runs(builder, label, from, to, what, runs, independent);
    if (done == what.out_rows) return;
    Copy rest = what;
    rest.rows -= done;
    rest.out_rows -= done;
    const auto skipped = [&](std::int64_t stride) { return static_cast<Place>(done * stride) * sizeof(float); };
    copy_elements(builder, label, from + skipped(what.row_stride), to + skipped(what.out_row), rest,
                  independent || runs > 0);
}

Panels pack_panels(PlanBuilder& builder, const std::string& label, const Matrix& b, std::int64_t n, std::int64_t k,
                   std::int64_t depth_multiple, bool independent) {
    const std::int64_t width = panel_width(builder), depth = round_up(k, depth_multiple), count = ceil_div(n, width);
    const Part all{
        b.offset, 0, {k, n, b.columns ? b.ld : 1, b.columns ? 1 : b.ld, width, depth, width, count, width * depth}};
    return {pack(builder, label + ": panels", label + ": pack", b.buffer, count * width * depth, {all}, independent),
            count, depth};
}

std::size_t pack_slots(PlanBuilder& builder, const SlotMatrices& matrices, std::int64_t slots, std::int64_t k,
                       const StepTile& tile) {
    const std::int64_t H = builder.spec().H, units = tile.vectors * std::int64_t{builder.profile().subgroup_size};
    std::vector<Part> parts;
    for (std::int64_t slot = 0; slot < slots; ++slot)
        parts.push_back({matrices.offset + slot * matrices.slot,
                         slot * units,
                         {k, H, matrices.column, matrices.row, units, k, slots * units, H / units, slots * units * k}});
    return pack(builder, "packed recurrent weight", "pack recurrent weight", matrices.buffer, slots * H * k, parts,
                true);
}

void copy_rows(PlanBuilder& builder, const std::string& label, Place from, Place to, std::int64_t rows,
               std::int64_t columns, std::int64_t row) {
    copy(builder, label, from, to, {rows, columns, row, 1, columns, rows, row, 1, 0}, false);
}

}  // namespace vkrnn
