// Products of a vector of units that belong to several heads. Compiled for each instruction set.
#pragma once

#include <algorithm>

#include "tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vkrnn::cpu::HWY_NAMESPACE {

// The heads of the first and the last unit of a vector.
struct VectorHeads {
    std::int64_t first, last;
};

// Which part of an operand the units of a block read. The units of a head read the same `depth` numbers.
struct Heads {
    std::int64_t units = 1;  // of a head
    std::int64_t first_unit = 0, block_units = 1;
    bool several = false;  // whether the block has units of several heads

    Heads() = default;
    HWY_INLINE Heads(std::int64_t of_head, std::int64_t first, std::int64_t of_block)
        : units(of_head), first_unit(first), block_units(of_block), several(of(0) != of(of_block - 1)) {}

    [[nodiscard]] HWY_INLINE std::int64_t of(std::int64_t unit) const { return (first_unit + unit) / units; }
    [[nodiscard]] HWY_INLINE VectorHeads of_vector(std::int64_t vector, std::int64_t lanes) const {
        return {of(vector * lanes), of(std::min((vector + 1) * lanes, block_units) - 1)};
    }
};

// sums[i][p] += the product of each unit's part of operand[i] with panels[p], for the units of vector v. If these parts
// fit in a vector together, it is loaded once, and `index` says which of its lanes each unit reads.
template <class T, int P, bool kInVector>
HWY_NOINLINE void multiply_across(const T* const* operand, std::int64_t count, std::int64_t depth, std::int64_t first,
                                  std::int64_t span, const hwy::MakeSigned<T>* index, const T* const* panels, T* sums,
                                  std::int64_t sums_row, std::int64_t sums_gate) {
    constexpr std::int64_t L = kLanes<T>;
    const Tag<T> d;
    const hn::RebindToSigned<Tag<T>> signs;
    const auto begin = hn::LoadU(signs, index), one = hn::Set(signs, 1);
    for (std::int64_t i = 0; i < count; ++i) {
        const T* const from = operand[i] + first;
        Vector<T> total[P];
        for (int p = 0; p < P; ++p) total[p] = hn::LoadU(d, sums + i * sums_row + p * sums_gate);
        const auto loaded = kInVector ? load_vector(from, span) : hn::Zero(d);
        auto at = begin;
        for (std::int64_t k = 0; k < depth;) {
            const std::int64_t end = run_end(k, depth);
            Vector<T> sum[P];
            for (int p = 0; p < P; ++p) sum[p] = hn::Zero(d);
            for (; k < end; ++k) {
                Vector<T> a;
                if constexpr (kInVector)
                    a = hn::TableLookupLanes(loaded, hn::IndicesFromVec(d, at));
                else
                    a = hn::GatherIndex(d, from, at);
                at = hn::Add(at, one);
                for (int p = 0; p < P; ++p) sum[p] = hn::MulAdd(a, hn::LoadU(d, panels[p] + k * L), sum[p]);
            }
            for (int p = 0; p < P; ++p) total[p] = hn::Add(total[p], sum[p]);
        }
        for (int p = 0; p < P; ++p) hn::StoreU(total[p], d, sums + i * sums_row + p * sums_gate);
    }
}

// The same for any number of products. `panels` begin at vector 0.
template <class T>
HWY_INLINE void multiply_across_heads(const T* const* operand, std::int64_t count, std::int64_t depth,
                                      const Heads& heads, VectorHeads of_vector, std::int64_t v, const T* const* panels,
                                      int products, T* sums, std::int64_t sums_row, std::int64_t sums_gate) {
    constexpr std::int64_t L = kLanes<T>;
    HWY_ALIGN hwy::MakeSigned<T> index[static_cast<std::size_t>(L)];
    for (std::int64_t lane = 0; lane < L; ++lane)  // lanes past the last unit read what that unit reads
        index[lane] = static_cast<hwy::MakeSigned<T>>(
            (heads.of(std::min(v * L + lane, heads.block_units - 1)) - of_vector.first) * depth);
    const std::int64_t span = (of_vector.last - of_vector.first + 1) * depth;
    const auto run = [&]<int P>(int first) {
        const T* of_vector_panels[P];
        for (int p = 0; p < P; ++p) of_vector_panels[p] = panels[first + p] + v * depth * L;
        const auto multiply = span <= L ? &multiply_across<T, P, true> : &multiply_across<T, P, false>;
        multiply(operand, count, depth, of_vector.first * depth, span, index, of_vector_panels,
                 sums + first * sums_gate, sums_row, sums_gate);
    };
    int p = 0;
    for (; p + 2 <= products; p += 2) run.template operator()<2>(p);
    if (p < products) run.template operator()<1>(p);
}

}  // namespace vkrnn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
