#include "broadcast.h"

#include <algorithm>
#include <initializer_list>
#include <numeric>

namespace vkrnn {

namespace {

constexpr std::int64_t kTable = abi::kBroadcastTable;
constexpr std::int64_t kRows = 8;         // of a tile: with two vectors in each as many sums as the registers hold
constexpr std::int64_t kMostDepth = 64;   // of a block of k: more is more code than the instruction cache holds
constexpr std::int64_t kLeastDepth = 32;  // less is mostly overhead
// Of k, and elements of a row: the kernel counts the bytes that a dispatch spans in 32 bits.
constexpr std::int64_t kLargestDepth = std::int64_t{1} << 21, kLargestRow = std::int64_t{1} << 20;
constexpr std::int64_t kSmallest = 16;  // of m, n and k: less is not worth packing

std::int64_t round_up(std::int64_t value, std::int64_t multiple) { return ceil_div(value, multiple) * multiple; }

// Of a panel of A.
std::int64_t a_width(const PlanBuilder& builder) {
    return std::max(kRows, std::int64_t{builder.profile().subgroup_size});
}

std::int64_t panel_width(const PlanBuilder& builder) { return std::int64_t{2} * builder.profile().subgroup_size; }

// How a workgroup splits k: `depth` is unrolled, and as many subgroups as there are `blocks` take one each.
struct Split {
    std::int64_t depth, blocks;
    [[nodiscard]] std::int64_t whole() const { return depth * blocks; }
};

// The largest part of k that divides it, of the deepest blocks; blocks of the full depth, the last one padded, where
// all that do are small.
Split split_of(std::int64_t k, std::int64_t most_depth, std::int64_t most_blocks) {
    Split best{most_depth, 1};
    bool divides = k % most_depth == 0;
    for (std::int64_t depth = most_depth; depth >= std::min(kLeastDepth, most_depth); depth -= 8)
        for (std::int64_t blocks = most_blocks; blocks >= 1; blocks /= 2)
            if (k % (depth * blocks) == 0 && (!divides || depth * blocks > best.whole())) {
                best = {depth, blocks};
                divides = true;
            }
    return best;
}

std::uint32_t word(std::int64_t value) { return static_cast<std::uint32_t>(value); }

std::size_t gemm_kernel(PlanBuilder& builder, std::int64_t rows, std::int64_t panels, const Split& split, bool columns,
                        bool in_window) {
    return builder.kernel("gemm_broadcast", {builder.profile().subgroup_size, word(split.blocks), word(rows),
                                             word(panels), word(split.depth), columns, in_window});
}

abi::BroadcastGemmPush new_push() {
    abi::BroadcastGemmPush push{};
    set_table(push);
    return push;
}

// Whether vectors so many elements apart can be stored to the place in a window.
bool fits_window(const PlanBuilder& builder, Place to, std::initializer_list<std::int64_t> strides) {
    constexpr std::int64_t kElements = abi::kWindowBytes / sizeof(float);
    return !builder.windows({place_buffer(to)}).empty() && place_offset(to) % abi::kWindowBytes == 0 &&
           std::all_of(strides.begin(), strides.end(), [](std::int64_t stride) { return stride % kElements == 0; });
}

constexpr std::int64_t kMostVectors = 8;  // of a panel

struct Copy {
    std::int64_t rows, columns;              // of the source
    std::int64_t row_stride, column_stride;  // of the source
    std::int64_t width, out_rows, out_row;   // of a panel
    std::int64_t panels, out_panel;
};

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

// Whole runs of rows of whole panels, of which there are so many.
void copy_runs(PlanBuilder& builder, const std::string& label, Place from, Place to, const Copy& what,
               std::int64_t runs, bool independent) {
    const std::int64_t lanes = builder.profile().subgroup_size, rows = abi::kPackRows / (what.width / lanes);
    const std::size_t kernel =
        builder.kernel("pack_broadcast", {word(lanes), word(what.width / lanes), what.column_stride == 1});
    const auto bytes = [](std::int64_t elements) { return elements * static_cast<std::int64_t>(sizeof(float)); };
    struct Axis {
        std::int64_t count, in, out;  // elements
    };
    Axis xy{what.panels, what.width * what.column_stride, what.out_panel};
    Axis z{runs, rows * what.row_stride, rows * what.out_row};
    // Along what lies side by side in the source.
    if (what.column_stride > what.row_stride) std::swap(xy, z);
    for (std::int64_t first = 0; first < xy.count;) {
        const std::int64_t x = std::min(kTable, xy.count - first), y = std::min(kTable, (xy.count - first) / x);
        for (std::int64_t first_z = 0; first_z < z.count; first_z += kTable) {
            abi::PackRunsPush push{};
            push.in_ = from + static_cast<Place>(bytes(first * xy.in + first_z * z.in));
            push.out_ = (to + static_cast<Place>(bytes(first * xy.out + first_z * z.out))) | kInWindow;
            push.in_row = word(bytes(what.row_stride));
            push.in_column = word(bytes(what.column_stride));
            push.out_row = word(bytes(what.out_row));
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
                                 {place_buffer(to)}});
        }
        first += x * y;
    }
}

void copy(PlanBuilder& builder, const std::string& label, Place from, Place to, const Copy& what, bool independent) {
    const std::int64_t lanes = builder.profile().subgroup_size, most = kMostVectors * lanes;
    const bool panels = what.columns == what.width * what.panels && what.width % lanes == 0 && what.width <= most &&
                        std::max(what.row_stride, what.column_stride) <= kLargestRow &&
                        fits_window(builder, to, {what.out_row, what.out_panel});
    const std::int64_t run = panels ? abi::kPackRows / (what.width / lanes) : 1;
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

// An operand or result with its padding: what the kernel reads and writes whole.
struct Padded {
    Matrix matrix;
    bool copied = false;
};

// Columns are packed: to walk along rows as long as these are would use one line of the cache for every element.
Padded padded_a(PlanBuilder& builder, const std::string& label, const Matrix& a, std::int64_t m, std::int64_t k,
                std::int64_t m_padded, std::int64_t k_padded, bool independent) {
    if (a.panels || (!a.columns && m == m_padded && k == k_padded)) return {a, false};
    const std::size_t buffer = builder.scratch(label + ": packed operand", m_padded * k_padded);
    const std::int64_t width = a_width(builder);
    const Copy columns{k, m, a.ld, 1, width, k_padded, width, m_padded / width, width * k_padded};
    const Copy rows{m, k, a.ld, 1, k_padded, m_padded, k_padded, 1, 0};
    copy(builder, label + ": pack", builder.at(a.buffer, a.offset), builder.at(buffer, 0), a.columns ? columns : rows,
         independent);
    return {{buffer, 0, k_padded, 0, a.columns, a.columns}, true};
}

Split split_of(std::int64_t k) { return split_of(k, kMostDepth, kRows); }

}  // namespace

bool suits_broadcast(const Product& product) {
    return std::min({product.m, product.n, product.k}) >= kSmallest && product.k <= kLargestDepth &&
           std::max(product.a.ld, product.c.ld) <= kLargestRow;
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

void share_columns(PlanBuilder& builder, const std::string& label, std::initializer_list<Product*> products) {
    const Product& first = **products.begin();
    const std::int64_t width = a_width(builder), k = round_up(first.k, split_of(first.k).whole());
    const bool can = std::all_of(products.begin(), products.end(), [&](const Product* p) {
        const bool whole = p->batches == 1 || (p->a.batch == p->m && p->m % width == 0);
        return suits_broadcast(*p) && p->a.columns && whole && p->a.buffer == first.a.buffer &&
               p->a.offset == first.a.offset && p->a.ld == first.a.ld && p->k == first.k &&
               p->m * p->batches == first.m;
    });
    if (!can) return;
    const Matrix packed = padded_a(builder, label, first.a, first.m, first.k, round_up(first.m, width), k, true).matrix;
    for (Product* p : products) {
        p->a = packed;
        p->a.batch = p->m * k;
    }
}

bool broadcast_product(PlanBuilder& builder, const std::string& label, const Product& whole, std::optional<Matrix> bias,
                       bool independent) {
    const std::int64_t width = panel_width(builder);
    const Split split = split_of(whole.k);
    const std::int64_t k = round_up(whole.k, split.whole()), n = round_up(whole.n, width);
    const std::int64_t m = round_up(whole.m, whole.a.columns ? a_width(builder) : kRows);
    if (n != whole.n) bias.reset();  // the kernel would read past its end
    for (std::int64_t batch = 0; batch < whole.batches; ++batch) {
        Product p = whole;
        p.a.offset += batch * p.a.batch;
        p.b.offset += batch * p.b.batch;
        p.c.offset += batch * p.c.batch;
        const Padded a = padded_a(builder, label, p.a, p.m, p.k, m, k, independent);
        const Panels b = pack_panels(builder, label, p.b, p.n, p.k, split.whole(), independent || a.copied);
        // Whole tiles are stored, and eight bytes at a time where there is no window.
        const bool direct = m == p.m && n == p.n && p.c.ld % 2 == 0 && p.c.offset % 2 == 0;
        const Matrix c = direct ? p.c : Matrix{builder.scratch(label + ": padded result", m * n), 0, n, 0, false};
        std::vector<std::size_t> windows;
        if (fits_window(builder, builder.at(c.buffer, c.offset), {c.ld})) windows.push_back(c.buffer);
        const std::size_t kernel = gemm_kernel(builder, kRows, 1, split, p.a.columns, !windows.empty());

        const auto element = static_cast<std::int64_t>(sizeof(float));
        for (std::int64_t tile = 0; tile < m / kRows;) {
            // Full rows of the grid of tiles, then what is left. The blocks of k pass over what stays in a cache.
            const std::int64_t y = std::min(kTable, m / kRows - tile), z = std::min(kTable, (m / kRows - tile) / y);
            for (std::int64_t x = 0; x < n / width; x += kTable)
                for (std::int64_t first_k = 0; first_k < k; first_k += split.whole()) {
                    abi::BroadcastGemmPush push = new_push();
                    const std::int64_t row = tile * kRows, column = x * width;
                    const bool first = first_k == 0;
                    const std::int64_t a_k = a.matrix.columns ? a_width(builder) : 1;
                    push.a = builder.at(a.matrix.buffer, a.matrix.offset + row * a.matrix.ld + first_k * a_k);
                    push.b = builder.at(b.buffer, column * k + first_k * width);
                    push.c = builder.at(c.buffer, c.offset + row * c.ld + column);
                    push.c_in = !first ? push.c
                                : bias ? builder.at(bias->buffer, bias->offset + column)
                                       : builder.at(builder.lane_zeros(), 0);
                    push.lda = word(a.matrix.ld);
                    if (!windows.empty()) push.c |= kInWindow;
                    push.ld_in = first ? 0 : word(c.ld);
                    push.ldc = word(c.ld);
                    push.panel = word(k * width * element);
                    push.c_in_panel = first && !bias ? 0 : word(width * element);
                    push.a_z = word(y * kRows * a.matrix.ld * element);
                    push.c_z = word(y * kRows * c.ld * element);
                    push.c_in_z = first ? 0 : push.c_z;
                    builder.add(Dispatch{label,
                                         kernel,
                                         {word(std::min(kTable, n / width - x)), word(y), word(z)},
                                         make_block(push, abi::kBroadcastGemmPlaces),
                                         !(first && x + tile > 0),
                                         windows,
                                         word(split.blocks)});
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
    const std::size_t kernel = builder.kernel("sum_rows_broadcast", {word(lanes)});
    const std::vector<std::size_t> windows = builder.windows({out});
    const auto element = static_cast<std::int64_t>(sizeof(float));
    for (std::int64_t vector = 0; vector < vectors;) {
        const std::int64_t x = std::min(kTable, vectors - vector), y = std::min(kTable, (vectors - vector) / x);
        for (std::int64_t run = 0; run < whole; run += kTable) {
            abi::SumRowsPush push{};
            push.in_ = builder.at(sum.in.buffer, sum.in.offset + run * abi::kSumRows * sum.in.row + vector * lanes);
            push.out_ = builder.at(out, run * columns + vector * lanes) | kInWindow;
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

namespace {

// A tile of few batch rows takes more panels instead; their loads are what costs most to compile.
struct GemmTile {
    std::int64_t rows, panels;
    Split split;
};

GemmTile gemm_tile(std::int64_t rows, std::int64_t panels, std::int64_t k) {
    GemmTile tile{std::gcd(rows, kRows), 1, {}};
    tile.panels = std::gcd(panels, std::min<std::int64_t>(4, kRows / tile.rows));
    tile.split = split_of(k, tile.panels == 4 ? kMostDepth / 2 : kMostDepth, tile.rows * tile.panels);
    return tile;
}

}  // namespace

std::int64_t step_slabs(const PlanBuilder& builder, std::int64_t rows, std::int64_t n, std::int64_t k) {
    return ceil_div(k, gemm_tile(rows, ceil_div(n, panel_width(builder)), k).split.whole());
}

// The kernel counts the bytes from step to step in 32 bits.
constexpr double kLargestSpan = 4294967296.0;

bool can_step_product(const PlanBuilder& builder, std::int64_t rows, std::int64_t n, std::int64_t k) {
    constexpr std::int64_t kMostSlabs = 32;
    const Split split = gemm_tile(rows, ceil_div(n, panel_width(builder)), k).split;
    const Spec& spec = builder.spec();
    const double bytes = 4.0 * static_cast<double>(spec.T * rows) * static_cast<double>(spec.D() * k);
    return k % split.whole() == 0 && k / split.whole() <= kMostSlabs && bytes < kLargestSpan;
}

std::vector<Dispatch> step_product(PlanBuilder& builder, const std::string& label, const StepProduct& p) {
    const std::int64_t width = panel_width(builder);
    const GemmTile tile = gemm_tile(p.rows, p.b.count, p.k);
    const std::int64_t part = tile.split.whole(), slabs = p.k / part, groups = p.b.count / tile.panels;
    std::vector<std::size_t> windows;
    if (fits_window(builder, p.out, {p.n, p.rows * p.n})) windows.push_back(place_buffer(p.out));
    const std::size_t kernel = gemm_kernel(builder, tile.rows, tile.panels, tile.split, false, !windows.empty());
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
                                {word(each), word(std::min(kTable, (p.rows - row) / tile.rows)), word(z)},
                                make_block(push, abi::kBroadcastGemmPlaces),
                                made.empty(),
                                windows,
                                word(tile.split.blocks),
                                slabs == 1 && z > 1 ? 2 : 0});
                x += slabs > 1 ? each : each * z;
            }
    return made;
}

namespace {

constexpr std::int64_t kSums = 16;              // vectors of sums that a subgroup keeps in registers
constexpr std::int64_t kInstructions = 3200;    // of a block of k, to stay in the instruction cache
constexpr std::int64_t kMostLoads = 512;        // of vectors, of a block of k: they compile in quadratic time
constexpr std::int64_t kSharedElements = 8192;  // what every device has
constexpr std::int64_t kMostShares = 4;         // of a tile's parts, of a subgroup
// Measured, in multiplications of a vector.
constexpr double kGateCost = 200;           // a part of the cell, for each of its gates
constexpr double kSubgroupCost = 500;       // of a product, whatever its depth
constexpr double kFusedSubgroupCost = 750;  // of a product and a cell
constexpr double kDispatchCost = 40e3;      // and that the processors meet after it
constexpr double kFusedWorth = 1.15;        // less is not worth the time that these kernels take to compile

// Of a processor, where so many subgroups are or are not shared by two.
double share(std::int64_t subgroups) { return subgroups < std::int64_t{kWorthSharing} ? 2 : 1; }

// What a part of the tile takes of a kernel that forms the product; none where the tile does not do.
std::optional<double> cost(const StepTile& tile, const PlanBuilder& builder, std::int64_t slots) {
    const Profile& profile = builder.profile();
    const std::int64_t sums = slots * tile.parts(), lanes = profile.subgroup_size;
    const bool shares =
        (tile.subgroups >= tile.parts() ||
         (tile.parts() % tile.subgroups == 0 && tile.parts() / tile.subgroups <= kMostShares)) &&
        (tile.subgroups <= kTable || (tile.subgroups % kTable == 0 && tile.subgroups <= kTable * kTable));
    const std::int64_t loads = slots * tile.vectors + tile.rows;
    if (sums > kSums || !shares || tile.subgroups * lanes > profile.max_workgroup_invocations ||
        (tile.subgroups + 1) * sums * lanes > kSharedElements || tile.depth * (2 * sums + loads) > kInstructions ||
        tile.depth * slots * tile.vectors > kMostLoads)
        return {};
    const auto products = static_cast<double>(tile.subgroups * tile.depth * std::max(sums, loads));
    const double rest = kGateCost * static_cast<double>(builder.spec().G() * std::max(tile.subgroups, tile.parts())) +
                        kFusedSubgroupCost * static_cast<double>(tile.subgroups);
    const std::int64_t groups = builder.spec().N * builder.spec().H / (tile.parts() * lanes);
    return (products + rest) / static_cast<double>(tile.parts()) * share(groups * tile.subgroups);
}

// The same with a kernel of its own for the product; none where that is not possible.
std::optional<double> unfused_cost(const PlanBuilder& builder, std::int64_t slots, std::int64_t k) {
    const Spec& spec = builder.spec();
    const std::int64_t n = slots * spec.H, lanes = builder.profile().subgroup_size;
    if (!can_step_product(builder, spec.N, n, k)) return {};
    const GemmTile tile = gemm_tile(spec.N, ceil_div(n, panel_width(builder)), k);
    const std::int64_t vectors = 2 * tile.panels, sums = tile.rows * vectors;
    const double block = static_cast<double>(tile.split.depth * std::max(sums, tile.rows + vectors)) + kSubgroupCost;
    const double blocks = static_cast<double>(slots * k) / static_cast<double>(tile.split.depth * sums);
    const std::int64_t vectors_of_n = spec.N * n / lanes;
    return block * blocks * share(vectors_of_n / sums * (k / tile.split.depth)) +
           kGateCost * static_cast<double>(spec.G()) + kSubgroupCost / 2 +
           kDispatchCost * static_cast<double>(lanes) / static_cast<double>(spec.N * spec.H);
}

}  // namespace

std::optional<StepTile> fused_tile(const PlanBuilder& builder, std::int64_t slots, std::int64_t k) {
    const Spec& spec = builder.spec();
    const std::int64_t lanes = builder.profile().subgroup_size;
    std::optional<StepTile> best;
    std::optional<double> least = unfused_cost(builder, slots, k);
    if (least) *least /= kFusedWorth;
    for (std::int64_t rows = std::gcd(spec.N, kRows); rows >= 1; rows /= 2)
        for (std::int64_t vectors = 1; vectors <= 8; vectors *= 2)
            for (std::int64_t depth = 8; depth <= kMostDepth; depth += 8) {
                if (spec.H % (vectors * lanes) != 0 || k % depth != 0) continue;
                const StepTile tile{rows, vectors, k / depth, depth};
                const auto takes = cost(tile, builder, slots);
                if (takes && (!least || *takes < *least)) {
                    best = tile;
                    least = takes;
                }
            }
    return best;
}

StepTile unfused_tile(const PlanBuilder& builder) {
    constexpr std::int64_t kMostSubgroups = 32;
    const Spec& spec = builder.spec();
    const std::int64_t vectors = std::gcd(spec.H / std::int64_t{builder.profile().subgroup_size}, kTable);
    const std::int64_t rows = std::gcd(spec.N, kMostSubgroups / (vectors / 2));
    return {rows, vectors, rows * vectors / 2, 0};
}

std::size_t pack_slots(PlanBuilder& builder, const SlotMatrices& matrices, std::int64_t slots, std::int64_t k,
                       const StepTile& tile) {
    const std::int64_t H = builder.spec().H, units = tile.vectors * std::int64_t{builder.profile().subgroup_size};
    const std::size_t packed = builder.scratch("packed recurrent weight", slots * H * k);
    for (std::int64_t slot = 0; slot < slots; ++slot)
        copy(builder, "pack recurrent weight", builder.at(matrices.buffer, matrices.offset + slot * matrices.slot),
             builder.at(packed, slot * units),
             {k, H, matrices.column, matrices.row, units, k, slots * units, H / units, slots * units * k}, true);
    return packed;
}

void copy_rows(PlanBuilder& builder, const std::string& label, Place from, Place to, std::int64_t rows,
               std::int64_t columns, std::int64_t row) {
    copy(builder, label, from, to, {rows, columns, row, 1, columns, rows, row, 1, 0}, false);
}

}  // namespace vkrnn
