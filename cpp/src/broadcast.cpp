#include "broadcast.h"

#include <algorithm>
#include <initializer_list>

namespace vkrnn {

namespace {

// Of k: the kernel counts the bytes that a dispatch spans in 32 bits.
constexpr std::int64_t kLargestDepth = std::int64_t{1} << 21;
constexpr std::int64_t kSmallest = 16;  // of m, n and k: less is not worth packing
// What is read where it is, though it does not lie as the kernel passes over it: columns of A that stay in a cache, and
// those of B whose rows are short, for the lines of longer ones fall on the same sets of a cache.
constexpr std::int64_t kCachedColumns = std::int64_t{1} << 21;  // elements, less than
constexpr std::int64_t kShortRow = 128;                         // elements

// Of a panel of A.
std::int64_t a_width(const PlanBuilder& builder) {
    return std::max(kTileRows, std::int64_t{builder.profile().subgroup_size});
}

std::vector<std::size_t> product_window(const PlanBuilder& builder, Place c,
                                        std::initializer_list<std::int64_t> strides) {
    if (!fits_window(builder, c, strides)) return {};
    std::vector<std::size_t> windows(abi::kWindows, kNoBuffer);
    windows[abi::kProductWindow] = place_buffer(c);
    return windows;
}

struct Strides {
    std::int64_t a, b;  // elements from one step of k to the next: see abi.h
};

std::size_t gemm_kernel(PlanBuilder& builder, std::int64_t rows, std::int64_t panels, const Split& split,
                        const Strides& strides, bool in_window) {
    return broadcast_kernel(builder, "gemm_broadcast",
                            {builder.profile().subgroup_size, word(split.blocks), word(rows), word(panels),
                             word(split.depth), word(strides.a), in_window, word(strides.b)});
}

abi::BroadcastGemmPush new_push() {
    abi::BroadcastGemmPush push{};
    set_table(push);
    return push;
}

// A copy with padding. Of columns it has panels, as many as there are lanes.
Matrix padded_a(PlanBuilder& builder, const std::string& label, const Matrix& a, std::int64_t m, std::int64_t k,
                std::int64_t m_padded, std::int64_t k_padded, bool independent) {
    const std::size_t buffer = builder.scratch(label + ": packed operand", m_padded * k_padded);
    const std::int64_t width = a_width(builder);
    const Copy columns{k, m, a.ld, 1, width, k_padded, width, m_padded / width, width * k_padded};
    const Copy rows{m, k, a.ld, 1, k_padded, m_padded, k_padded, 1, 0};
    copy(builder, label + ": pack", builder.at(a.buffer, a.offset), builder.at(buffer, 0), a.columns ? columns : rows,
         independent);
    return {buffer, 0, k_padded, 0, a.columns, a.columns};
}

// An operand as the kernel reads it.
struct Operand {
    std::size_t buffer;
    std::int64_t offset;
    std::int64_t apart;   // elements from one row of A, or panel of B, to the next
    std::int64_t stride;  // elements from one step of k to the next; 0 for A by rows
};

// Whether A is read where it is, not packed or padded.
bool left_stays(const Matrix& a, std::int64_t m, std::int64_t k, const Split& split) {
    return !a.panels && m % kTileRows == 0 && k % split.whole() == 0 && (!a.columns || m * k < kCachedColumns);
}

Operand left_operand(PlanBuilder& builder, const std::string& label, const Product& p, std::int64_t m_padded,
                     const Split& split, bool independent) {
    if (left_stays(p.a, p.m, p.k, split))
        return {p.a.buffer, p.a.offset, p.a.columns ? 1 : p.a.ld, p.a.columns ? p.a.ld : 0};
    const Matrix packed =
        p.a.panels ? p.a : padded_a(builder, label, p.a, p.m, p.k, m_padded, round_up(p.k, split.whole()), independent);
    return {packed.buffer, packed.offset, packed.ld, packed.columns ? a_width(builder) : 0};
}

Operand right_operand(PlanBuilder& builder, const std::string& label, const Product& p, const Split& split,
                      bool independent) {
    const std::int64_t width = panel_width(builder);
    if (p.b.columns && p.b.ld <= kShortRow && p.n % width == 0 && p.k % split.whole() == 0)
        return {p.b.buffer, p.b.offset, width, p.b.ld};
    const Panels panels = pack_panels(builder, label, p.b, p.n, p.k, split.whole(), independent);
    return {panels.buffer, 0, panels.depth * width, width};
}

}  // namespace

bool suits_broadcast(const Product& product) {
    return std::min({product.m, product.n, product.k}) >= kSmallest && product.k <= kLargestDepth &&
           std::max(product.a.ld, product.c.ld) <= kLargestRow;
}

void share_columns(PlanBuilder& builder, const std::string& label, std::initializer_list<Product*> products) {
    const Product& first = **products.begin();
    const Split split = gemm_split(builder, first.k);
    const std::int64_t width = a_width(builder), k = round_up(first.k, split.whole());
    const bool can = std::all_of(products.begin(), products.end(), [&](const Product* p) {
        const bool whole = p->batches == 1 || (p->a.batch == p->m && p->m % width == 0);
        return suits_broadcast(*p) && p->a.columns && whole && p->a.buffer == first.a.buffer &&
               p->a.offset == first.a.offset && p->a.ld == first.a.ld && p->k == first.k &&
               p->m * p->batches == first.m;
    });
    if (!can || left_stays(first.a, first.m, first.k, split)) return;
    const Matrix packed = padded_a(builder, label, first.a, first.m, first.k, round_up(first.m, width), k, true);
    for (Product* p : products) {
        p->a = packed;
        p->a.batch = p->m * k;
    }
}

bool broadcast_product(PlanBuilder& builder, const std::string& label, const Product& whole, std::optional<Matrix> bias,
                       bool independent) {
    const std::int64_t width = panel_width(builder);
    const Split split = gemm_split(builder, whole.k);
    const std::int64_t k = round_up(whole.k, split.whole()), n = round_up(whole.n, width);
    const bool packed = whole.a.columns && !left_stays(whole.a, whole.m, whole.k, split);
    const std::int64_t m = round_up(whole.m, packed ? a_width(builder) : kTileRows);
    if (n != whole.n) bias.reset();  // the kernel would read past its end
    for (std::int64_t batch = 0; batch < whole.batches; ++batch) {
        Product p = whole;
        p.a.offset += batch * p.a.batch;
        p.b.offset += batch * p.b.batch;
        p.c.offset += batch * p.c.batch;
        const Operand a = left_operand(builder, label, p, m, split, independent);
        const Operand b = right_operand(builder, label, p, split, independent || a.buffer != p.a.buffer);
        // Whole tiles are stored, and eight bytes at a time where there is no window.
        const bool direct = m == p.m && n == p.n && p.c.ld % 2 == 0 && p.c.offset % 2 == 0;
        const Matrix c = direct ? p.c : Matrix{builder.scratch(label + ": padded result", m * n), 0, n, 0, false};
        const std::vector<std::size_t> windows = product_window(builder, builder.at(c.buffer, c.offset), {c.ld});
        const std::size_t kernel = gemm_kernel(builder, kTileRows, 1, split, {a.stride, b.stride}, !windows.empty());

        const auto element = static_cast<std::int64_t>(sizeof(float));
        for (std::int64_t tile = 0; tile < m / kTileRows;) {
            // Full rows of the grid of tiles, then what is left. The blocks of k pass over what stays in a cache.
            const std::int64_t y = std::min(kTable, m / kTileRows - tile),
                               z = std::min(kTable, (m / kTileRows - tile) / y);
            for (std::int64_t x = 0; x < n / width; x += kTable)
                for (std::int64_t first_k = 0; first_k < k; first_k += split.whole()) {
                    abi::BroadcastGemmPush push = new_push();
                    const std::int64_t row = tile * kTileRows, column = x * width;
                    const bool first = first_k == 0;
                    push.a =
                        builder.at(a.buffer, a.offset + row * a.apart + first_k * std::max<std::int64_t>(a.stride, 1));
                    push.b = builder.at(b.buffer, b.offset + x * b.apart + first_k * b.stride);
                    push.c = builder.at(c.buffer, c.offset + row * c.ld + column);
                    push.c_in = !first ? push.c
                                : bias ? builder.at(bias->buffer, bias->offset + column)
                                       : builder.at(builder.lane_zeros(), 0);
                    push.lda = word(a.apart);
                    if (!windows.empty()) push.c |= kInWindow;
                    push.ld_in = first ? 0 : word(c.ld);
                    push.ldc = word(c.ld);
                    push.panel = word(b.apart * element);
                    push.c_in_panel = first && !bias ? 0 : word(width * element);
                    push.a_z = word(y * kTileRows * a.apart * element);
                    push.c_z = word(y * kTileRows * c.ld * element);
                    push.c_in_z = first ? 0 : push.c_z;
                    builder.add(Dispatch{label,
                                         kernel,
                                         {word(y), word(std::min(kTable, n / width - x)), word(z)},
                                         make_block(push, abi::kBroadcastGemmPlaces),
                                         !(first && x + tile > 0),
                                         windows,
                                         word(split.blocks),
                                         1});
                }
            tile += y * z;
        }
        builder.count_flops(2.0 * static_cast<double>(p.m * p.n) * static_cast<double>(p.k));
        if (!direct)
            copy(builder, label + ": unpad", builder.at(c.buffer, 0), builder.at(p.c.buffer, p.c.offset),
                 {p.m, p.n, n, 1, p.n, p.m, p.c.ld, 1, 0}, false);
    }
    return bias.has_value();
}

bool suits_broadcast(const PlanBuilder& builder, const RowSum& sum) {
    const std::int64_t columns = sum.directions * sum.gates * sum.width;
    return !sum.factor && sum.rows > abi::kSumRows &&
           ceil_div(sum.rows, abi::kSumRows) * columns <= std::int64_t{kLargestWindow / sizeof(float)} &&
           sum.width % builder.profile().subgroup_size == 0 && (sum.gates == 1 || sum.in.gate == sum.width) &&
           (sum.directions == 1 || sum.in.direction == sum.gates * sum.width) && sum.in.row <= kLargestRow;
}

// Sums of runs of rows, the last of which are fewer; then their sum.
void broadcast_row_sum(PlanBuilder& builder, const std::string& label, const RowSum& sum, bool independent) {
    const std::int64_t columns = sum.directions * sum.gates * sum.width, whole = sum.rows / abi::kSumRows;
    const std::int64_t rest = sum.rows - whole * abi::kSumRows, parts = whole + (rest > 0 ? 1 : 0);
    const std::size_t out = builder.scratch(label + " parts", parts * columns);
    const std::int64_t lanes = builder.profile().subgroup_size, vectors = columns / lanes;
    const std::size_t kernel = broadcast_kernel(builder, "sum_rows_broadcast", {word(lanes)});
    const std::vector<std::size_t> windows = builder.windows({out});
    const auto element = static_cast<std::int64_t>(sizeof(float));
    for (std::int64_t vector = 0; vector < vectors;) {
        const std::int64_t x = std::min(kTable, vectors - vector), y = std::min(kTable, (vectors - vector) / x);
        for (std::int64_t run = 0; run < whole; run += kTable) {
            abi::SumRowsPush push{};
            push.in_ = builder.at(sum.in.buffer, sum.in.offset + run * abi::kSumRows * sum.in.row + vector * lanes);
            push.out_ = builder.at(out, run * columns + vector * lanes);
            if (!windows.empty()) push.out_ |= kInWindow;
            push.in_row = word(sum.in.row * element);
            push.in_run = word(abi::kSumRows * sum.in.row * element);
            push.out_run = word(columns * element);
            set_table(push);
            builder.add(Dispatch{label,
                                 kernel,
                                 {word(x), word(y), word(std::min(kTable, whole - run))},
                                 make_block(push, abi::kSumRowsPlaces),
                                 !independent && vector + run == 0,
                                 windows});
        }
        vector += x * y;
    }
    if (rest > 0) {
        RowSum last = sum;
        last.rows = rest;
        last.in.offset += whole * abi::kSumRows * sum.in.row;
        last.out = out;
        last.out_offset = whole * columns;
        builder.row_sum(label + ": last rows", last, true);
    }
    builder.add_parts(label + ": add parts", out, parts, columns, sum.out, sum.out_offset);
}

std::vector<Dispatch> step_product(PlanBuilder& builder, const std::string& label, const StepProduct& p) {
    const std::int64_t width = panel_width(builder);
    const GemmTile tile = gemm_tile(builder, p.rows, p.b.count, p.k);
    const std::int64_t part = tile.split.whole(), slabs = p.k / part, groups = p.b.count / tile.panels;
    const std::vector<std::size_t> windows = product_window(builder, p.out, {p.n, p.rows * p.n});
    const std::size_t kernel = gemm_kernel(builder, tile.rows, tile.panels, tile.split, {0, width}, !windows.empty());
    const auto element = static_cast<std::int64_t>(sizeof(float));
    // Where A moves back, the last step's is the lowest.
    const std::int64_t moved = p.a_step < 0 ? (p.steps - 1) * p.a_step : 0;
    std::vector<Dispatch> made;
    // z is the slab, or where there is one only, more panels.
    const std::int64_t z_groups = slabs == 1 ? std::clamp<std::int64_t>(groups / kTable, 1, kTable) : 1;
    for (std::int64_t slab = 0; slab < slabs; slab += kTable)
        for (std::int64_t row = 0; row < p.rows; row += tile.rows * kTable)
            for (std::int64_t x = 0; x < groups;) {
                const std::int64_t each = std::min(kTable, groups - x);
                const std::int64_t z =
                    slabs > 1 ? std::min(kTable, slabs - slab) : std::min(z_groups, (groups - x) / each);
                const std::int64_t column = x * tile.panels * width;
                abi::BroadcastGemmPush push = new_push();
                push.a = p.a + static_cast<Place>((row * p.lda + slab * part + moved) * element);
                push.a_first = word(-moved * element);
                push.c_in = builder.at(builder.lane_zeros(), 0);
                push.b = builder.at(p.b.buffer, column * p.b.depth + slab * part * width);
                push.c = p.out + static_cast<Place>(((slab * p.rows + row) * p.n + column) * element);
                if (!windows.empty()) push.c |= kInWindow;
                push.a_step = word(p.a_step * element);
                push.step = p.step;
                push.lag = p.lag;
                push.lda = word(p.lda);
                push.ldc = word(p.n);
                push.panel = word(p.b.depth * width * element);
                push.a_z = slabs > 1 ? word(part * element) : 0;
                push.b_z = slabs > 1 ? word(part * width * element) : word(each * tile.panels) * push.panel;
                push.c_z = word((slabs > 1 ? p.rows * p.n : each * tile.panels * width) * element);
                made.push_back({label,
                                kernel,
                                {word(std::min(kTable, (p.rows - row) / tile.rows)), word(each), word(z)},
                                make_block(push, abi::kBroadcastGemmPlaces),
                                made.empty(),
                                windows,
                                word(tile.split.blocks),
                                slabs == 1 && z > 1 ? 2 : 1,
                                kNoBuffer,
                                abi::kBroadcastCounter});
                x += slabs > 1 ? each : each * z;
            }
    return made;
}

}  // namespace vkrnn
