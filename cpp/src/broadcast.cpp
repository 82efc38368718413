#include "broadcast.h"

#include <algorithm>
#include <numeric>

namespace vkrnn {

namespace {

constexpr std::int64_t kTable = abi::kBroadcastTable;
constexpr std::int64_t kRows = 8;        // of a tile: the most that the registers hold
constexpr std::int64_t kDepth = 128;     // of a block of k: more is more code than the instruction cache holds
constexpr std::int64_t kStepDepth = 64;  // likewise, of the steps' products
constexpr std::int64_t kCacheElements = 256 * 1024;  // of C, over which the blocks of k pass one after the other
constexpr std::int64_t kSmallest = 16;               // of m, n and k: less is not worth packing

std::int64_t round_up(std::int64_t value, std::int64_t multiple) { return ceil_div(value, multiple) * multiple; }

std::int64_t panel_width(const PlanBuilder& builder) { return std::int64_t{2} * builder.profile().subgroup_size; }

// The largest multiple of 8 up to `limit` that divides k; `limit` where that would be a small one.
std::int64_t block_of(std::int64_t k, std::int64_t limit) {
    for (std::int64_t block = std::min(limit, k / 8 * 8); block * 3 >= limit && block > 0; block -= 8)
        if (k % block == 0) return block;
    return std::min(limit, round_up(k, 8));
}

std::int64_t panels_per_group(std::int64_t panels) {
    return panels % 8 == 0 && panels > 8 ? 8 : panels % 4 == 0 && panels > 4 ? 4 : 1;
}

std::uint32_t word(std::int64_t value) { return static_cast<std::uint32_t>(value); }

std::size_t gemm_kernel(PlanBuilder& builder, std::int64_t panels, std::int64_t rows, std::int64_t depth, bool columns) {
    return builder.kernel("gemm_broadcast",
                          {builder.profile().subgroup_size, word(panels), word(rows), word(depth), columns});
}

abi::BroadcastGemmPush new_push() {
    abi::BroadcastGemmPush push{};
    std::iota(std::begin(push.table), std::end(push.table), 0u);
    return push;
}

struct Copy {
    std::int64_t rows, columns;                // of the source
    std::int64_t row_stride, column_stride;    // of the source
    std::int64_t width, out_rows, out_row;     // of a panel
    std::int64_t panels, out_panel;
};

void copy(PlanBuilder& builder, const std::string& label, Place from, Place to, const Copy& what, bool independent) {
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

// An operand or result with its padding: what the kernel reads and writes whole.
struct Padded {
    Matrix matrix;
    bool copied = false;
};

Padded padded_a(PlanBuilder& builder, const std::string& label, const Matrix& a, std::int64_t m, std::int64_t k,
                std::int64_t m_padded, std::int64_t k_padded, bool independent) {
    if (m == m_padded && k == k_padded) return {a, false};
    const std::int64_t major = a.columns ? k : m, minor = a.columns ? m : k;
    const std::int64_t out_major = a.columns ? k_padded : m_padded, out_minor = a.columns ? m_padded : k_padded;
    const std::size_t buffer = builder.scratch(label + ": padded operand", out_major * out_minor);
    copy(builder, label + ": pad", builder.at(a.buffer, a.offset), builder.at(buffer, 0),
         {major, minor, a.ld, 1, out_minor, out_major, out_minor, 1, 0}, independent);
    return {{buffer, 0, out_minor, 0, a.columns}, true};
}

}  // namespace

bool suits_broadcast(const Product& product) {
    return std::min({product.m, product.n, product.k}) >= kSmallest;
}

Panels pack_panels(PlanBuilder& builder, const std::string& label, const Matrix& b, std::int64_t n, std::int64_t k,
                   std::int64_t depth_multiple, bool independent) {
    const std::int64_t width = panel_width(builder);
    const Panels panels{builder.scratch(label + ": panels", ceil_div(n, width) * width * round_up(k, depth_multiple)),
                        ceil_div(n, width), round_up(k, depth_multiple)};
    copy(builder, label + ": pack", builder.at(b.buffer, b.offset), builder.at(panels.buffer, 0),
         {k, n, b.columns ? b.ld : 1, b.columns ? 1 : b.ld, width, panels.depth, width, panels.count,
          width * panels.depth},
         independent);
    return panels;
}

bool broadcast_product(PlanBuilder& builder, const std::string& label, const Product& whole, std::optional<Matrix> bias,
                       bool independent) {
    const std::int64_t width = panel_width(builder), block = block_of(whole.k, kDepth);
    const std::int64_t k = round_up(whole.k, block), m = round_up(whole.m, kRows), n = round_up(whole.n, width);
    const std::int64_t panels_each = panels_per_group(n / width), groups_x = n / width / panels_each;
    if (n != whole.n) bias.reset();  // the kernel would read past its end
    for (std::int64_t batch = 0; batch < whole.batches; ++batch) {
        Product p = whole;
        p.a.offset += batch * p.a.batch;
        p.b.offset += batch * p.b.batch;
        p.c.offset += batch * p.c.batch;
        const Padded a = padded_a(builder, label, p.a, p.m, p.k, m, k, independent);
        const Panels b = pack_panels(builder, label, p.b, p.n, p.k, block, independent || a.copied);
        // Eight bytes are stored at a time, whole tiles.
        const bool direct = m == p.m && n == p.n && p.c.ld % 2 == 0 && p.c.offset % 2 == 0;
        const Matrix c = direct ? p.c : Matrix{builder.scratch(label + ": padded result", m * n), 0, n, 0, false};
        const std::size_t kernel = gemm_kernel(builder, panels_each, kRows, block, p.a.columns);

        const std::int64_t most = std::min(kTable * kTable, std::max<std::int64_t>(1, kCacheElements / (kRows * n)));
        const auto element = static_cast<std::int64_t>(sizeof(float));
        for (std::int64_t tile = 0; tile < m / kRows;) {
            // Full rows of the grid of tiles, then what is left.
            const std::int64_t left = std::min(most, m / kRows - tile);
            const std::int64_t y = std::min(left, kTable), z = left / y;
            for (std::int64_t first_k = 0; first_k < k; first_k += block)
                for (std::int64_t x = 0; x < groups_x; x += kTable) {
                    abi::BroadcastGemmPush push = new_push();
                    const std::int64_t row = tile * kRows, column = x * panels_each * width;
                    const bool first = first_k == 0;
                    const std::int64_t a_row = a.matrix.columns ? 1 : a.matrix.ld;
                    const std::int64_t a_k = a.matrix.columns ? a.matrix.ld : 1;
                    push.a = builder.at(a.matrix.buffer, a.matrix.offset + row * a_row + first_k * a_k);
                    push.b = builder.at(b.buffer, column * k + first_k * width);
                    push.c = builder.at(c.buffer, c.offset + row * c.ld + column);
                    push.c_in = !first ? push.c : bias ? builder.at(bias->buffer, bias->offset + column)
                                                       : builder.at(builder.lane_zeros(), 0);
                    push.lda = word(a.matrix.ld);
                    push.ld_in = first ? 0 : word(c.ld);
                    push.ldc = word(c.ld);
                    push.panel = word(k * width * element);
                    push.c_in_panel = first && !bias ? 0 : word(width * element);
                    push.a_z = word(y * kRows * a_row * element);
                    push.c_z = word(y * kRows * c.ld * element);
                    push.c_in_z = first ? 0 : push.c_z;
                    builder.dispatch(label, kernel,
                                     {word(std::min(kTable, groups_x - x)), word(y), word(z)},
                                     make_block(push, abi::kBroadcastGemmPlaces), x > 0);
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

std::int64_t step_slabs(std::int64_t k) { return ceil_div(k, block_of(k, kStepDepth)); }

std::vector<Dispatch> step_product(PlanBuilder& builder, const std::string& label, const StepProduct& p) {
    const std::int64_t width = panel_width(builder), depth = block_of(p.k, kStepDepth), slabs = p.k / depth;
    const std::int64_t rows = std::gcd(p.rows, kRows);
    const std::int64_t panels_each = panels_per_group(p.b.count);
    const std::int64_t groups_x = p.b.count / panels_each;
    const std::size_t kernel = gemm_kernel(builder, panels_each, rows, depth, false);
    const auto element = static_cast<std::int64_t>(sizeof(float));
    std::vector<Dispatch> made;
    for (std::int64_t slab = 0; slab < slabs; slab += kTable)
        for (std::int64_t row = 0; row < p.rows; row += rows * kTable)
            for (std::int64_t x = 0; x < groups_x; x += kTable) {
                const std::int64_t column = x * panels_each * width;
                abi::BroadcastGemmPush push = new_push();
                const bool first = slab + row + x == 0;
                push.a = p.a + static_cast<Place>((row * p.lda + slab * depth) * element);
                push.b = builder.at(p.b.buffer, column * p.b.depth + slab * depth * width);
                push.c = p.out + static_cast<Place>(((slab * p.rows + row) * p.n + column) * element);
                push.c_in = builder.at(builder.lane_zeros(), 0);
                push.a_step = p.a_step * element;
                push.step = p.step;
                push.lag = p.lag;
                push.lda = word(p.lda);
                push.ldc = word(p.n);
                push.panel = word(p.b.depth * width * element);
                push.a_z = word(depth * element);
                push.b_z = word(depth * width * element);
                push.c_z = word(p.rows * p.n * element);
                made.push_back({label,
                                kernel,
                                {word(std::min(kTable, groups_x - x)), word(std::min(kTable, (p.rows - row) / rows)),
                                 word(std::min(kTable, slabs - slab))},
                                make_block(push, abi::kBroadcastGemmPlaces),
                                first});
            }
    return made;
}

void copy_elements(PlanBuilder& builder, const std::string& label, Place from, Place to, std::int64_t elements) {
    copy(builder, label, from, to, {1, elements, elements, 1, elements, 1, elements, 1, 0}, false);
}

}  // namespace vkrnn
