// Products of matrices and what else a plan has besides its time loop. Included once for each instruction set.
#if defined(VKRNN_CPU_PRODUCT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef VKRNN_CPU_PRODUCT_INL_H
#undef VKRNN_CPU_PRODUCT_INL_H
#else
#define VKRNN_CPU_PRODUCT_INL_H
#endif

#include <bit>
#include <cstring>

#include "cpu/split.h"
#include "cpu/team.h"
#include "tile-inl.h"
#include "cpu/work.h"

HWY_BEFORE_NAMESPACE();
namespace vkrnn::cpu::HWY_NAMESPACE {

template <class T>
HWY_INLINE T* pointer(Address address) {
    return reinterpret_cast<T*>(static_cast<std::uintptr_t>(address));
}

// out[k * lanes + lane] = in[lane * in_n + k * in_k] for `columns` lanes, zeros in the others.
template <class T>
HWY_INLINE void pack_panel(const T* in, Stride in_n, Stride in_k, std::int64_t columns, std::int64_t depth, T* out) {
    constexpr std::int64_t L = kLanes<T>;
    const Tag<T> d;
    if (in_n == 1) {
        for (std::int64_t k = 0; k < depth; ++k) hn::Store(load(in + k * in_k, columns).raw, d, out + k * L);
        return;
    }
    // Runs of k: whole lines of cache are read from each column, and what is written stays in the nearest cache.
    constexpr std::int64_t kRun = 16;
    for (std::int64_t first = 0; first < depth; first += kRun) {
        const std::int64_t end = std::min(depth, first + kRun);
        for (std::int64_t lane = 0; lane < L; ++lane) {
            const T* from = in + lane * in_n;
            T* to = out + lane;
            if (lane < columns) {
                for (std::int64_t k = first; k < end; ++k) to[k * L] = from[k * in_k];
            } else {
                for (std::int64_t k = first; k < end; ++k) to[k * L] = T{0};
            }
        }
    }
}

template <class T>
void pack(const PackWork& work, Member& member) {
    constexpr std::int64_t L = kLanes<T>;
    const std::int64_t panels = (work.n + L - 1) / L;
    const Range mine = part_of(work.batches * panels, member.rank(), member.size());
    for (std::int64_t i = mine.begin; i < mine.end; ++i) {
        const std::int64_t batch = i / panels, n = i % panels * L;
        pack_panel(pointer<const T>(work.in) + batch * work.in_batch + n * work.in_n, work.in_n, work.in_k,
                   std::min(L, work.n - n), work.k, pointer<T>(work.out) + i * work.k * L);
    }
}

// Rows of A as rows of so many elements that lie side by side.
template <class T>
HWY_INLINE void gather_rows(const T* in, Stride in_m, Stride in_k, std::int64_t rows, std::int64_t depth, T* out) {
    constexpr std::int64_t kRun = 16;
    for (std::int64_t first = 0; first < rows; first += kRun)
        for (std::int64_t k = 0; k < depth; ++k)
            for (std::int64_t m = first; m < std::min(rows, first + kRun); ++m)
                out[m * depth + k] = in[m * in_m + k * in_k];
}

inline constexpr std::int64_t kBlockRows = 96;  // of A and C: with kDepth they stay in the second cache

// A thread's part of C, += the product over the part of k that is packed.
template <class T>
void product_part(const ProductWork& work, const T* a, const T* packed, std::int64_t packed_depth, T* c, bool first,
                  Range rows, Range panels, Member& member) {
    constexpr std::int64_t L = kLanes<T>;
    const std::int64_t blocks = (packed_depth + kDepth<T> - 1) / kDepth<T>;
    const bool gathers = work.a_k != 1;
    T* const gathered = static_cast<T*>(
        gathers ? member.scratch(1, sizeof(T) * static_cast<std::size_t>(kBlockRows * kDepth<T>)) : nullptr);
    const std::int64_t whole = std::min(panels.end, work.n / L) - panels.begin;  // panels of whole vectors
    const std::int64_t width = std::min(panels.end * L, work.n) - panels.begin * L;
    const std::int64_t panel = packed_depth * L;
    HWY_ALIGN T edge[static_cast<std::size_t>(kTileRows * kLanes<T>)];
    for (std::int64_t top = rows.begin; top < rows.end; top += kBlockRows) {
        const std::int64_t height = std::min(kBlockRows, rows.end - top);
        T* const to = c + top * work.c_m + panels.begin * L;
        if (first)
            for (std::int64_t m = 0; m < height; ++m)
                std::memset(to + m * work.c_m, 0, static_cast<std::size_t>(width) * sizeof(T));
        for (std::int64_t block = 0; block < blocks; ++block) {
            if (member.stopped()) return;
            const Range k = part_of(packed_depth, block, blocks);
            const std::int64_t depth = k.end - k.begin;
            const T* const from = a + top * work.a_m + k.begin * work.a_k;
            if (gathers) gather_rows(from, work.a_m, work.a_k, height, depth, gathered);
            const T* row[kBlockRows];
            for (std::int64_t m = 0; m < height; ++m) row[m] = gathers ? gathered + m * depth : from + m * work.a_m;
            const T* const b = packed + panels.begin * panel + k.begin * L;
            if (whole > 0) multiply_rows<T>(row, height, depth, b, panel, whole, false, to, work.c_m);
            if (whole * L == width) continue;
            // The last columns fill no vector: their sums take a way round.
            const std::int64_t columns = width - whole * L;
            for (std::int64_t m = 0; m < height; m += kTileRows) {
                const std::int64_t some = std::min<std::int64_t>(kTileRows, height - m);
                T* const last = to + m * work.c_m + whole * L;
                for (std::int64_t i = 0; i < some; ++i)
                    hn::Store(load(last + i * work.c_m, columns).raw, Tag<T>(), edge + i * L);
                multiply_rows<T>(row + m, some, depth, b + whole * panel, panel, 1, false, edge, L);
                for (std::int64_t i = 0; i < some; ++i)
                    store(Lanes<T>(hn::Load(Tag<T>(), edge + i * L)), last + i * work.c_m, columns);
            }
        }
    }
}

// Parts of C for so many threads, as square as they can be.
struct Grid {
    std::int64_t rows, columns;
};
inline Grid grid_for(std::int64_t m, std::int64_t n, unsigned threads) {
    Grid best{1, threads};
    double least = 0;
    for (std::int64_t rows = 1; rows <= threads; ++rows) {
        if (threads % rows != 0) continue;
        const std::int64_t columns = threads / rows;
        const double edges = static_cast<double>(m) / static_cast<double>(rows) + static_cast<double>(n) / static_cast<double>(columns);
        if (rows == 1 || edges < least) {
            least = edges;
            best = {rows, columns};
        }
    }
    return best;
}

template <class T>
void product(const ProductWork& work, Member& member) {
    constexpr std::int64_t L = kLanes<T>;
    const std::int64_t panels = (work.n + L - 1) / L;
    const Grid grid = grid_for(work.m, work.n, member.size());
    const Range rows = part_of(work.m, member.rank() / grid.columns, grid.rows);
    const Range columns = part_of(panels, member.rank() % grid.columns, grid.columns);
    const Range packs = part_of(panels, member.rank(), member.size());
    T* const packed = pointer<T>(work.packed);
    for (std::int64_t batch = 0; batch < work.batches; ++batch) {
        const T* const a = pointer<const T>(work.a) + batch * work.a_batch;
        const T* const b = pointer<const T>(work.b) + batch * work.b_batch;
        for (std::int64_t k = 0; k < work.k; k += kPackedDepth) {
            const std::int64_t depth = std::min(kPackedDepth, work.k - k);
            if (batch + k > 0 && member.meet(0, member.rank(), member.size(), false) == 0) return;
            for (std::int64_t p = packs.begin; p < packs.end; ++p)
                pack_panel(b + p * L * work.b_n + k * work.b_k, work.b_n, work.b_k, std::min(L, work.n - p * L), depth,
                           packed + p * depth * L);
            if (member.meet(0, member.rank(), member.size(), false) == 0) return;
            product_part(work, a + k * work.a_k, packed, depth, pointer<T>(work.c) + batch * work.c_batch, k == 0, rows,
                         columns, member);
        }
    }
}

// Of a sum over rows: so many are added up before they are added to what was there, which keeps errors small; so many
// vectors of columns at a time.
inline constexpr std::int64_t kSumRows = 64, kSumVectors = 4;

template <class T, bool HasFactor>
void sum_columns(const SumWork& work, std::int64_t direction, std::int64_t gate, Range columns) {
    constexpr std::int64_t L = kLanes<T>;
    const T* in = pointer<const T>(work.in) + direction * work.in_direction + gate * work.in_gate;
    const T* factor = pointer<const T>(work.factor) + direction * work.factor_direction + gate * work.factor_gate;
    T* out = pointer<T>(work.out) + (direction * work.gates + gate) * work.width;
    const std::int64_t vectors = (columns.end - columns.begin + L - 1) / L;
    Lanes<T> total[kSumVectors] = {0.0, 0.0, 0.0, 0.0};
    for (std::int64_t first = 0; first < work.rows; first += kSumRows) {
        Lanes<T> sum[kSumVectors] = {0.0, 0.0, 0.0, 0.0};
        for (std::int64_t row = first; row < std::min(work.rows, first + kSumRows); ++row) {
            for (std::int64_t v = 0; v < vectors; ++v) {
                const std::int64_t j = columns.begin + v * L, count = std::min(L, columns.end - j);
                Lanes<T> value = load(in + row * work.in_row + j, count);
                if constexpr (HasFactor) value = value * load(factor + row * work.factor_row + j, count);
                sum[v] += value;
            }
        }
        for (std::int64_t v = 0; v < vectors; ++v) total[v] += sum[v];
    }
    for (std::int64_t v = 0; v < vectors; ++v) {
        const std::int64_t j = columns.begin + v * L;
        store(total[v], out + j, std::min(L, columns.end - j));
    }
}

// Each thread has columns of its own.
template <class T>
void sum_rows(const SumWork& work, Member& member) {
    constexpr std::int64_t kWidth = kSumVectors * kLanes<T>;
    const std::int64_t stripes = (work.width + kWidth - 1) / kWidth, each = stripes * work.gates;
    const Range mine = part_of(work.directions * each, member.rank(), member.size());
    for (std::int64_t i = mine.begin; i < mine.end; ++i) {
        if (member.stopped()) return;
        const std::int64_t j = i % stripes * kWidth;
        const Range columns{j, std::min(work.width, j + kWidth)};
        const auto sum = work.has_factor != 0 ? &sum_columns<T, true> : &sum_columns<T, false>;
        sum(work, i / each, i % each / stripes, columns);
    }
}

HWY_INLINE float from_half(std::uint16_t half) {
    const std::uint32_t rest = static_cast<std::uint32_t>(half & 0x7fffU) << 13;
    // The multiplication makes small numbers right, which a half stores without a leading one.
    const float scaled = std::bit_cast<float>(rest) * std::bit_cast<float>(0x77800000U);  // 2^112
    const std::uint32_t bits = rest >= 0x0f800000U ? rest | 0x7f800000U : std::bit_cast<std::uint32_t>(scaled);
    return std::bit_cast<float>(bits | static_cast<std::uint32_t>(half & 0x8000U) << 16);
}

// To the nearest, of two the even one.
HWY_INLINE std::uint16_t to_half(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t size = bits & 0x7fffffffU;
    const std::uint32_t rounded = (size - 0x38000000U + 0xfffU + (size >> 13 & 1U)) >> 13;
    // Adding a half pushes the bits of a small number to where a half stores them, and rounds.
    const std::uint32_t small = std::bit_cast<std::uint32_t>(std::bit_cast<float>(size) + 0.5F) - 0x3f000000U;
    std::uint32_t half = size < 0x38800000U ? small : rounded;
    half = size >= 0x477ff000U ? 0x7c00U : half;
    half = size > 0x7f800000U ? 0x7e00U | (size >> 13 & 0x3ffU) : half;
    return static_cast<std::uint16_t>(half | (bits >> 16 & 0x8000U));
}

HWY_INLINE std::uint16_t to_bfloat(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t rounded = (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;
    return static_cast<std::uint16_t>((bits & 0x7fffffffU) > 0x7f800000U ? (bits >> 16 | 0x40U) : rounded);
}

inline void convert(const ConvertWork& work, Member& member) {
    const auto [begin, end] = part_of(work.count, member.rank(), member.size());
    if (work.narrow != 0) {
        const auto* in = pointer<const float>(work.in);
        auto* out = pointer<std::uint16_t>(work.out);
        if (work.bfloat != 0) {
            for (std::int64_t i = begin; i < end; ++i) out[i] = to_bfloat(in[i]);
        } else {
            for (std::int64_t i = begin; i < end; ++i) out[i] = to_half(in[i]);
        }
        return;
    }
    const auto* in = pointer<const std::uint16_t>(work.in);
    auto* out = pointer<float>(work.out);
    if (work.bfloat != 0) {
        for (std::int64_t i = begin; i < end; ++i)
            out[i] = std::bit_cast<float>(static_cast<std::uint32_t>(in[i]) << 16);
    } else {
        for (std::int64_t i = begin; i < end; ++i) out[i] = from_half(in[i]);
    }
}

}  // namespace vkrnn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
