// Copies of the last states, and products element by element. Included once for each instruction set.
#if defined(VKRNN_CPU_ELEMENTS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef VKRNN_CPU_ELEMENTS_INL_H
#undef VKRNN_CPU_ELEMENTS_INL_H
#else
#define VKRNN_CPU_ELEMENTS_INL_H
#endif

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
        T* const out = pointer<T>(work.out) + n * row;
        if (steps == 0) {
            if (work.has_initial != 0)
                std::copy_n(pointer<const T>(work.initial) + n * row, row, out);
            else
                std::fill_n(out, row, T{0});
            continue;
        }
        const auto copy = [&](std::int64_t t, std::int64_t first) {
            const std::int64_t at = work.packed != 0 ? live.firsts()[t] + n : t * work.N + n;
            std::copy_n(pointer<const T>(work.in) + at * row + first, work.width, out + first);
        };
        copy(steps - 1, 0);
        if (work.directions == 2) copy(0, work.width);
    }
}

template <class T>
void multiply(const MultiplyWork& work, Member& member) {
    const auto *const a = pointer<const T>(work.a), *const b = pointer<const T>(work.b);
    T* const out = pointer<T>(work.out);
    const Range mine = part_of(work.count, member.rank(), member.size());
    for (std::int64_t i = mine.begin; i < mine.end; ++i) out[i] = a[i] * b[i];
}

}  // namespace vkrnn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
