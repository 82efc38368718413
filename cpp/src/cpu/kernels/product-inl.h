// Matrix products, and the other kernels that run before or after a time loop. Compiled for each instruction set.
#pragma once

#include <cstring>

#include "cpu/threads/team.h"
#include "cpu/work/live_rows.h"
#include "cpu/work/split.h"
#include "heads-inl.h"
#include "plan/cpu_work.h"
#include "tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vkrnn::cpu::HWY_NAMESPACE {

template <class T>
HWY_INLINE T* pointer(Address address) {
    return reinterpret_cast<T*>(static_cast<std::uintptr_t>(address));
}

// out[c * out_row + r] = in[r * in_row + c].
template <class T>
HWY_INLINE void transpose_some(const T* in, Stride in_row, std::int64_t rows, std::int64_t columns, T* out,
                               Stride out_row) {
    for (std::int64_t r = 0; r < rows; ++r)
        for (std::int64_t c = 0; c < columns; ++c) out[c * out_row + r] = in[r * in_row + c];
}

#if HWY_TARGET == HWY_SCALAR
template <class T>
HWY_INLINE void transpose(const T* in, Stride in_row, std::int64_t rows, std::int64_t columns, T* out, Stride out_row) {
    transpose_some(in, in_row, rows, columns, out, out_row);
}
#else
// Elements, and so columns, in a 16-byte block.
template <class T>
inline constexpr std::int64_t kBlockColumns = 16 / sizeof(T);

// Loads one 16-byte block from each of rows 0, kBlockColumns, 2 * kBlockColumns, ..., as many as a vector has.
template <class D, class T = hn::TFromD<D> >
HWY_INLINE hn::Vec<D> load_blocks(D d, const T* in, Stride in_row) {
    if constexpr (hn::MaxLanes(D()) == kBlockColumns<T>) {
        return hn::LoadU(d, in);
    } else {
        const hn::Half<D> half;
        constexpr std::int64_t rows = hn::MaxLanes(D()) / 2;
        return hn::Combine(d, load_blocks(half, in + rows * in_row, in_row), load_blocks(half, in, in_row));
    }
}

// Transposes kBlockColumns columns of as many rows as a vector has lanes.
template <class D>
HWY_INLINE void transpose_rows(D d, const float* in, Stride in_row, float* out, Stride out_row) {
    const hn::RepartitionToWide<D> pairs;
    const auto row0 = load_blocks(d, in, in_row), row1 = load_blocks(d, in + in_row, in_row);
    const auto row2 = load_blocks(d, in + 2 * in_row, in_row), row3 = load_blocks(d, in + 3 * in_row, in_row);
    const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, row0, row1));
    const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, row0, row1));
    const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, row2, row3));
    const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, row2, row3));
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23)), d, out);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23)), d, out + out_row);
    hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23)), d, out + 2 * out_row);
    hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23)), d, out + 3 * out_row);
}

template <class D>
HWY_INLINE void transpose_rows(D d, const double* in, Stride in_row, double* out, Stride out_row) {
    const auto row0 = load_blocks(d, in, in_row), row1 = load_blocks(d, in + in_row, in_row);
    hn::StoreU(hn::InterleaveLower(d, row0, row1), d, out);
    hn::StoreU(hn::InterleaveUpper(d, row0, row1), d, out + out_row);
}

// Transposes in bands of rows, moving along each band so that whole cache lines are read. Writes are contiguous if both
// the height of a band and out_row equal the number of lanes.
template <class T>
HWY_INLINE void transpose(const T* in, Stride in_row, std::int64_t rows, std::int64_t columns, T* out, Stride out_row) {
    constexpr std::int64_t L = kLanes<T>, kBlock = kBlockColumns<T>;
    const std::int64_t whole = columns / kBlock * kBlock;
    std::int64_t r = 0;
    for (; r + L <= rows; r += L)
        for (std::int64_t c = 0; c < whole; c += kBlock)
            transpose_rows(Tag<T>(), in + r * in_row + c, in_row, out + c * out_row + r, out_row);
    for (; r + kBlock <= rows; r += kBlock)
        for (std::int64_t c = 0; c < whole; c += kBlock)
            transpose_rows(hn::FixedTag<T, kBlock>(), in + r * in_row + c, in_row, out + c * out_row + r, out_row);
    transpose_some(in + whole, in_row, r, columns - whole, out + whole * out_row, out_row);
    transpose_some(in + r * in_row, in_row, rows - r, columns, out + r, out_row);
}
#endif

// out[k * lanes + lane] = in[lane * in_n + k * in_k] for the first `columns` lanes; the other lanes are 0. One of the
// strides must be 1. If `lines` is given, in_n must be 1 and row k is read from row lines[k].
template <class T>
HWY_INLINE void pack_panel(const T* in, Stride in_n, Stride in_k, std::int64_t columns, std::int64_t depth, T* out,
                           const std::int64_t* lines = nullptr) {
    constexpr std::int64_t L = kLanes<T>;
    const Tag<T> d;
    if (in_n == 1) {
        for (std::int64_t k = 0; k < depth; ++k)
            hn::Store(load_vector(in + (lines == nullptr ? k : lines[k]) * in_k, columns), d, out + k * L);
        return;
    }
    transpose(in, in_n, columns, depth, out, L);
    if (columns == L) return;
    for (std::int64_t k = 0; k < depth; ++k) std::fill(out + k * L + columns, out + (k + 1) * L, T{0});
}

template <class T>
void pack(const PackWork& work, Member& member) {
    constexpr std::int64_t L = kLanes<T>;
    const std::int64_t panels = (work.n + L - 1) / L;
    const Range mine = part_of(work.directions * work.blocks * work.batches * panels, member.rank(), member.size());
    for (std::int64_t i = mine.begin; i < mine.end; ++i) {
        const std::int64_t n = i % panels * L, matrix = i / panels, block = matrix / work.batches;
        const T* const in = pointer<const T>(work.in) + block / work.blocks * work.in_direction +
                            block % work.blocks * work.in_block + matrix % work.batches * work.in_batch;
        T* const out = pointer<T>(work.out) + i * work.k * L;
        const std::int64_t columns = std::min(L, work.n - n);
        if (work.head_units == work.n) {
            pack_panel(in + n * work.in_n, work.in_n, work.in_k, columns, work.k, out);
            continue;
        }
        for (std::int64_t k = 0; k < work.k; ++k)
            for (std::int64_t lane = 0; lane < L; ++lane) {
                const std::int64_t unit = n + lane;
                out[k * L + lane] = lane >= columns ? T{0}
                                                    : in[unit / work.head_units * work.in_head +
                                                         unit % work.head_units * work.in_n + k * work.in_k];
            }
    }
}

inline constexpr std::int64_t kBlockRows = 96;  // of A and C in a block; with kDepth, it fits into the L2 cache

// Row numbers at which a product's matrices have their rows. Null: rows follow one another.
struct Lines {
    const std::int64_t *a = nullptr, *b = nullptr, *c = nullptr;
};

// Copies a part of a matrix stored by columns, in[k][m], to rows[m][k].
template <class T>
void gather(const ProductWork& work, const T* a, Range k, std::int64_t top, std::int64_t height,
            const std::int64_t* lines, Member& member, T* rows) {
    const std::int64_t depth = k.end - k.begin;
    if (lines == nullptr) return transpose(a + k.begin * work.a_k + top, work.a_k, depth, height, rows, depth);
    T* const staged = static_cast<T*>(member.scratch(2, sizeof(T) * static_cast<std::size_t>(height * depth)));
    for (std::int64_t i = 0; i < depth; ++i)
        std::memcpy(staged + i * height, a + lines[k.begin + i] * work.a_k + top,
                    static_cast<std::size_t>(height) * sizeof(T));
    transpose(staged, height, depth, height, rows, depth);
}

// Adds the product over the packed part of k, which begins at first_k, to a thread's part of C.
template <class T>
void product_part(const ProductWork& work, const T* a, const T* packed, std::int64_t first_k, std::int64_t packed_depth,
                  T* c, const Lines& lines, Range rows, Range panels, Member& member) {
    constexpr std::int64_t L = kLanes<T>;
    const std::int64_t blocks = (packed_depth + kDepth<T> - 1) / kDepth<T>;
    const bool along_lines = work.of_live.along_k != 0 && lines.a != nullptr;
    const bool gathers = work.a_k != 1 || along_lines, first = first_k == 0;
    T* const gathered = static_cast<T*>(
        gathers ? member.scratch(1, sizeof(T) * static_cast<std::size_t>(kBlockRows * kDepth<T>)) : nullptr);
    const std::int64_t whole = std::min(panels.end, work.n / L) - panels.begin;  // panels without unused lanes
    const std::int64_t width = std::min(panels.end * L, work.n) - panels.begin * L;
    const std::int64_t panel = packed_depth * L;
    const std::size_t row_bytes = static_cast<std::size_t>(width) * sizeof(T);
    // If rows of C are scattered (lines.c), sums are computed in contiguous scratch rows and then copied.
    T* const apart = static_cast<T*>(
        lines.c == nullptr ? nullptr : member.scratch(3, static_cast<std::size_t>(kBlockRows) * row_bytes));
    HWY_ALIGN T edge[static_cast<std::size_t>(kTileRows * kLanes<T>)];
    for (std::int64_t top = rows.begin; top < rows.end; top += kBlockRows) {
        const std::int64_t height = std::min(kBlockRows, rows.end - top);
        T* const out = c + panels.begin * L;
        T* const to = apart == nullptr ? out + top * work.c_m : apart;
        const Stride to_row = apart == nullptr ? work.c_m : width;
        if (first) {
            for (std::int64_t m = 0; m < height; ++m) std::memset(to + m * to_row, 0, row_bytes);
        } else if (apart != nullptr) {
            for (std::int64_t m = 0; m < height; ++m)
                std::memcpy(to + m * to_row, out + lines.c[top + m] * work.c_m, row_bytes);
        }
        for (std::int64_t block = 0; block < blocks; ++block) {
            if (member.stopped()) return;
            const Range k = part_of(packed_depth, block, blocks);
            const std::int64_t depth = k.end - k.begin;
            if (gathers) gather(work, a, {first_k + k.begin, first_k + k.end}, top, height, lines.a, member, gathered);
            const T* row[kBlockRows];
            for (std::int64_t m = 0; m < height; ++m) {
                const std::int64_t line = lines.a == nullptr || gathers ? top + m : lines.a[top + m];
                row[m] = gathers ? gathered + m * depth : a + line * work.a_m + first_k + k.begin;
            }
            const T* const b = packed + panels.begin * panel + k.begin * L;
            if (whole > 0) multiply_rows<T>(row, height, depth, b, panel, whole, false, to, to_row);
            if (whole * L == width) continue;
            // The tail columns go through a scratch tile.
            const std::int64_t columns = width - whole * L;
            for (std::int64_t m = 0; m < height; m += kTileRows) {
                const std::int64_t some = std::min<std::int64_t>(kTileRows, height - m);
                T* const last = to + m * to_row + whole * L;
                for (std::int64_t i = 0; i < some; ++i)
                    hn::Store(load_vector(last + i * to_row, columns), Tag<T>(), edge + i * L);
                multiply_rows<T>(row + m, some, depth, b + whole * panel, panel, 1, false, edge, L);
                for (std::int64_t i = 0; i < some; ++i)
                    store_vector(hn::Load(Tag<T>(), edge + i * L), last + i * to_row, columns);
            }
        }
        if (apart == nullptr) continue;
        for (std::int64_t m = 0; m < height; ++m)
            std::memcpy(out + lines.c[top + m] * work.c_m, to + m * to_row, row_bytes);
    }
}

// Divides C into one part for each thread, as square as possible.
struct Grid {
    std::int64_t rows, columns;
};
inline Grid grid_for(std::int64_t m, std::int64_t n, unsigned threads) {
    Grid best{1, threads};
    double least = 0;
    for (std::int64_t rows = 1; rows <= threads; ++rows) {
        if (threads % rows != 0) continue;
        const std::int64_t columns = threads / rows;
        const double edges =
            static_cast<double>(m) / static_cast<double>(rows) + static_cast<double>(n) / static_cast<double>(columns);
        if (rows == 1 || edges < least) {
            least = edges;
            best = {rows, columns};
        }
    }
    return best;
}

// Clears a member's share of those rows of C whose batch row has ended.
template <class T>
void clear_ended(const ProductWork& work, const LiveRows& live, T* c, unsigned rank, unsigned members) {
    const Range mine = part_of(live.T, rank, members);
    for (std::int64_t t = mine.begin; t < mine.end; ++t)
        for (std::int64_t i = live.live(t); i < live.N; ++i)
            std::memset(c + (t * live.N + live.order()[i]) * work.c_m, 0, static_cast<std::size_t>(work.n) * sizeof(T));
}

// Computes a product whose batches are narrow heads.
template <class T>
void product_of_heads(const ProductWork& work, const Lines& lines, Member& member) {
    constexpr std::int64_t L = kLanes<T>;
    const Heads heads(work.n, 0, work.batches * work.n);
    const std::int64_t columns = heads.block_units, panels = (columns + L - 1) / L, panel = work.k * L;
    T* const packed = pointer<T>(work.packed);
    const Range packs = part_of(work.sets * panels, member.rank(), member.size());
    for (std::int64_t p = packs.begin; p < packs.end; ++p)
        for (std::int64_t lane = 0; lane < L; ++lane) {
            const std::int64_t column = p % panels * L + lane, head = column / work.n;
            const T* const b = pointer<const T>(work.b) + p / panels * work.b_set + head * work.b_batch +
                               (column - head * work.n) * work.b_n;
            for (std::int64_t k = 0; k < work.k; ++k)
                packed[p * panel + k * L + lane] = column < columns ? b[k * work.b_k] : T{0};
        }
    if (member.barrier(0, member.rank(), member.size(), false) == 0) return;
    const Range rows = part_of(work.m, member.rank(), member.size());
    T* const sums = static_cast<T*>(member.scratch(0, sizeof(T) * static_cast<std::size_t>(kBlockRows * L)));
    for (std::int64_t top = rows.begin; top < rows.end; top += kBlockRows) {
        if (member.stopped()) return;
        const std::int64_t height = std::min(kBlockRows, rows.end - top);
        for (std::int64_t set = 0; set < work.sets; ++set) {
            const T* a[kBlockRows];
            for (std::int64_t m = 0; m < height; ++m)
                a[m] = pointer<const T>(work.a) + set * work.a_set +
                       (lines.a == nullptr ? top + m : lines.a[top + m]) * work.a_m;
            const T* const of_set = packed + set * panels * panel;
            for (std::int64_t v = 0; v < panels; ++v) {
                std::memset(sums, 0, sizeof(T) * static_cast<std::size_t>(height * L));
                multiply_across_heads<T>(a, height, work.k, heads, heads.of_vector(v, L), v, &of_set, 1, sums, L, 0);
                T* const c = pointer<T>(work.c) + set * work.c_set + v * L;
                for (std::int64_t m = 0; m < height; ++m)
                    store_vector(hn::Load(Tag<T>(), sums + m * L),
                                 c + (lines.c == nullptr ? top + m : lines.c[top + m]) * work.c_m, columns - v * L);
            }
        }
    }
}

template <class T>
void product(const ProductWork& given, Member& member) {
    constexpr std::int64_t L = kLanes<T>;
    ProductWork work = given;
    const LiveRows live{pointer<const std::int64_t>(work.live), work.of_live.T, work.of_live.N};
    Lines lines;
    if (live.N != 0) {
        (work.of_live.along_k != 0 ? work.k : work.m) = live.count();
        if (work.of_live.a != 0) lines.a = live.lines();
        if (work.of_live.b != 0) lines.b = live.lines();
        if (work.of_live.c != 0) lines.c = live.lines();
    }
    if (work.narrow_heads != 0) {
        product_of_heads<T>(work, lines, member);
        if (lines.c != nullptr)
            for (std::int64_t i = 0; i < work.sets * work.batches; ++i)
                clear_ended(work, live,
                            pointer<T>(work.c) + i / work.batches * work.c_set + i % work.batches * work.c_batch,
                            member.rank(), member.size());
        return;
    }
    const std::int64_t panels = (work.n + L - 1) / L;
    // Members share each batch, or have batches of their own if there are many, and then need no barrier.
    const std::int64_t all = work.sets * work.batches;
    const bool own = member.size() > 1 && all >= 2 * std::int64_t{member.size()};
    const unsigned members = own ? 1 : member.size(), rank = own ? 0 : member.rank();
    const Range batches = own ? part_of(all, member.rank(), member.size()) : Range{0, all};
    const auto wait = [&] { return members == 1 || member.barrier(0, rank, members, false) != 0; };
    const Grid grid = grid_for(work.m, work.n, members);
    const Range rows = part_of(work.m, rank / grid.columns, grid.rows);
    const Range columns = part_of(panels, rank % grid.columns, grid.columns);
    const Range packs = part_of(panels, rank, members);
    T* const packed = own ? static_cast<T*>(member.scratch(
                                0, sizeof(T) * static_cast<std::size_t>(product_elements(work.n, work.k, L))))
                          : pointer<T>(work.packed);
    for (std::int64_t batch = batches.begin; batch < batches.end; ++batch) {
        const std::int64_t set = batch / work.batches, in_set = batch % work.batches;
        const T* const a = pointer<const T>(work.a) + set * work.a_set + in_set * work.a_batch;
        const T* const b = pointer<const T>(work.b) + set * work.b_set + in_set * work.b_batch;
        T* const c = pointer<T>(work.c) + set * work.c_set + in_set * work.c_batch;
        // Also runs once if no row is live and k is 0, to clear C.
        for (std::int64_t k = 0; k < std::max<std::int64_t>(work.k, 1); k += kPackedDepth) {
            const std::int64_t depth = std::min(kPackedDepth, work.k - k);
            if (work.is_packed == 0) {
                if (batch + k > 0 && !wait()) return;
                for (std::int64_t p = packs.begin; p < packs.end; ++p)
                    pack_panel(b + p * L * work.b_n + (lines.b == nullptr ? k * work.b_k : 0), work.b_n, work.b_k,
                               std::min(L, work.n - p * L), depth, packed + p * depth * L,
                               lines.b == nullptr ? nullptr : lines.b + k);
                if (!wait()) return;
            }
            product_part(work, a, packed, k, depth, c, lines, rows, columns, member);
        }
        if (lines.c != nullptr) clear_ended(work, live, c, rank, members);
    }
}

// kSumRows rows are summed before they are added to the total, which keeps rounding errors small. kSumLanes `Lanes` of
// columns are summed at a time.
inline constexpr std::int64_t kSumRows = 64, kSumLanes = 2;

// `lines`: the numbers of the rows to sum (a), and of the factor's (b). Null: rows follow one another.
template <class T, bool HasFactor>
void sum_columns(const SumWork& work, std::int64_t rows, const Lines& lines, std::int64_t direction, std::int64_t gate,
                 Range columns) {
    constexpr std::int64_t W = Lanes<T>::kCount;
    const T* in = pointer<const T>(work.in) + direction * work.in_direction + gate * work.in_gate;
    const T* factor = pointer<const T>(work.factor) + direction * work.factor_direction + gate * work.factor_gate;
    T* out = pointer<T>(work.out) + (direction * work.gates + gate) * work.width;
    const std::int64_t parts = (columns.end - columns.begin + W - 1) / W;
    Lanes<T> total[kSumLanes] = {0.0, 0.0};
    for (std::int64_t first = 0; first < rows; first += kSumRows) {
        Lanes<T> sum[kSumLanes] = {0.0, 0.0};
        for (std::int64_t row = first; row < std::min(rows, first + kSumRows); ++row) {
            const T* const from = in + (lines.a == nullptr ? row : lines.a[row]) * work.in_row;
            const T* const by = factor + (lines.b == nullptr ? row : lines.b[row]) * work.factor_row;
            for (std::int64_t v = 0; v < parts; ++v) {
                const std::int64_t j = columns.begin + v * W, count = std::min(W, columns.end - j);
                Lanes<T> value = load(from + j, count);
                if constexpr (HasFactor) value = value * load(by + j, count);
                sum[v] += value;
            }
        }
        for (std::int64_t v = 0; v < parts; ++v) total[v] += sum[v];
    }
    for (std::int64_t v = 0; v < parts; ++v) {
        const std::int64_t j = columns.begin + v * W;
        store(total[v], out + j, std::min(W, columns.end - j));
    }
}

// Each thread sums its own columns.
template <class T>
void sum_rows(const SumWork& work, Member& member) {
    constexpr std::int64_t kWidth = kSumLanes * Lanes<T>::kCount;
    const std::int64_t stripes = (work.width + kWidth - 1) / kWidth, each = stripes * work.gates;
    const LiveRows live{pointer<const std::int64_t>(work.live), work.of_live.T, work.of_live.N};
    const std::int64_t rows = live.N != 0 ? live.count() : work.rows;
    const Lines lines{work.of_live.a != 0 ? live.lines() : nullptr, work.of_live.b != 0 ? live.lines() : nullptr};
    const Range mine = part_of(work.directions * each, member.rank(), member.size());
    for (std::int64_t i = mine.begin; i < mine.end; ++i) {
        if (member.stopped()) return;
        const std::int64_t j = i % stripes * kWidth;
        const Range columns{j, std::min(work.width, j + kWidth)};
        const auto sum = work.has_factor != 0 ? &sum_columns<T, true> : &sum_columns<T, false>;
        sum(work, rows, lines, i / each, i % each / stripes, columns);
    }
}

}  // namespace vkrnn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
