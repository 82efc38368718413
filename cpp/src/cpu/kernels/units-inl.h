// A cell's forward step for some units of a batch row: loads what the cell reads, computes it, and stores what it
// gives. The time loop and the step of a stream share it. Included once for each instruction set.
#if defined(VKRNN_CPU_UNITS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef VKRNN_CPU_UNITS_INL_H
#undef VKRNN_CPU_UNITS_INL_H
#else
#define VKRNN_CPU_UNITS_INL_H
#endif

#include "lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vkrnn::cpu::HWY_NAMESPACE {

// `count` units of a row.
template <class T>
struct Units {
    std::int64_t count;
    HWY_INLINE Lanes<T> load(const T* p) const { return HWY_NAMESPACE::load(p, count); }
    HWY_INLINE void store(Lanes<T> value, T* p) const { HWY_NAMESPACE::store(value, p, count); }
};

// Where a batch row has a step's inputs and results: the addresses of unit 0, and the strides between slots. What a
// cell does not have may be null.
template <class T>
struct ForwardRow {
    const T *vectors, *hidden_before, *cell_before;
    T *hidden, *cell, *saved, *scaled_operand;
    Stride vectors_slot, before_slot, cell_slot, saved_slot;
    bool keeps;  // whether `saved` is stored
};

// Computes units from j on, from the sums x and r of gates [First, End). Of two phases, 1 and 2, the first one also
// stores the operand of the second, for which it needs the mask.
template <int First, int End, int Phase, class C, class T, class Some>
HWY_INLINE void step_units(C& cell, const ForwardRow<T>& row, const std::int64_t (&slot)[C::kGates], std::int64_t j,
                           Some units, const Lanes<T> (&x)[C::kGates], const Lanes<T> (&r)[C::kGates], Lanes<T> mask) {
    constexpr int kStates = C::kStates, kVectors = C::kVectors;
    Lanes<T> vectors[C::kGates], kept[C::kGates], before[kStates], after[kStates];
    // With one vector for each gate, vectors are in the order of gates in memory. A single vector is in slot 0.
    for (int i = 0; i < kVectors; ++i)
        vectors[i] = units.load(row.vectors + (kVectors > 1 ? slot[i] : 0) * row.vectors_slot + j);
    before[0] = units.load(row.hidden_before + j);
    for (int s = 1; s < kStates; ++s) before[s] = units.load(row.cell_before + (s - 1) * row.before_slot + j);

    if constexpr (Phase == 1) {
        cell.cell_forward_first(x, r, kept);
        units.store(before[0] * mask * kept[C::kScale], row.scaled_operand + j);
    } else {
        if constexpr (Phase == 2) {
            for (int g = 0; g < First; ++g) kept[g] = units.load(row.saved + slot[g] * row.saved_slot + j);
            cell.cell_forward_second(x, r, before, after, kept);
        } else {
            cell.cell_forward(x, r, vectors, before, after, kept);
        }
        units.store(after[0], row.hidden + j);
        for (int s = 1; s < kStates; ++s) units.store(after[s], row.cell + (s - 1) * row.cell_slot + j);
    }
    if (row.keeps)
        for (int g = First; g < End; ++g) units.store(kept[g], row.saved + slot[g] * row.saved_slot + j);
}

}  // namespace vkrnn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
