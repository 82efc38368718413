// Copies of rows, and products and sums element by element. Compiled for each instruction set.
#pragma once

#include <algorithm>

#include "product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vkrnn::cpu::HWY_NAMESPACE {

template <class T>
void last_rows(const LastRowsWork& work, Member& member) {
    const auto* const lengths = work.has_lengths != 0 ? pointer<const std::int32_t>(work.lengths) : nullptr;
    const LiveRows live{pointer<const std::int64_t>(work.live), work.T, work.N};
    const std::int64_t row = work.directions * work.width;
    const Range mine = part_of(work.N, member.rank(), member.size());
    for (std::int64_t n = mine.begin; n < mine.end; ++n) {
        const std::int64_t steps = lengths != nullptr ? lengths[n] : work.T;
        for (std::int64_t d = 0; d < work.directions; ++d) {
            const std::int64_t state = n * work.state_row + d * work.state_direction;
            T* const out = pointer<T>(work.out) + state;
            if (steps != 0) {
                const std::int64_t t = d == 0 ? steps - 1 : 0;
                const std::int64_t at = work.packed != 0 ? live.firsts()[t] + n : t * work.N + n;
                std::copy_n(pointer<const T>(work.in) + at * row + d * work.width, work.width, out);
            } else if (work.has_initial != 0) {
                std::copy_n(pointer<const T>(work.initial) + state, work.width, out);
            } else {
                std::fill_n(out, work.width, T{0});
            }
        }
    }
}

template <class T>
void combine(const CombineWork& work, Member& member) {
    const auto *const a = pointer<const T>(work.a), *const b = pointer<const T>(work.b);
    T* const out = pointer<T>(work.out);
    const Range mine = part_of(work.count, member.rank(), member.size());
    for (std::int64_t period = 0; period < work.count; period += work.period) {
        const std::int64_t begin = std::max(mine.begin, period), end = std::min(mine.end, period + work.period);
        const std::int64_t limit = std::clamp(period + work.limit, begin, std::max(begin, end));
        if (work.adds != 0)
            for (std::int64_t i = begin; i < limit; ++i) out[i] = a[i] + b[i];
        else
            for (std::int64_t i = begin; i < limit; ++i) out[i] = a[i] * b[i];
        for (std::int64_t i = limit; i < end; ++i) out[i] = a[i];
    }
}

template <class T>
void copy_rows(const CopyRowsWork& work, Member& member) {
    const Range mine = part_of(work.rows, member.rank(), member.size());
    for (std::int64_t row = mine.begin; row < mine.end; ++row)
        std::copy_n(pointer<const T>(work.in) + row * work.in_row, work.width,
                    pointer<T>(work.out) + row * work.out_row);
}

}  // namespace vkrnn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
