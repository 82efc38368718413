// A cell's step for some units of a batch row: loads what the cell reads, computes it, and stores what it gives. The
// time loops and the step of a stream find the rows and compute the products. Compiled for each instruction set.
#pragma once

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

// Loads the training state of gates [0, End).
template <int End, class T, int Gates, class Some>
HWY_INLINE void load_kept(const T* training_state, Stride training_slot, const std::int64_t (&slot)[Gates],
                          std::int64_t j, Some units, Lanes<T> (&kept)[Gates]) {
    for (int g = 0; g < End; ++g) kept[g] = units.load(training_state + slot[g] * training_slot + j);
}

// Loads the learned vectors. If each gate has one, they are in the order of gates in memory; a single one is in slot 0.
template <class C, class T, class Some>
HWY_INLINE void load_vectors(const T* vectors, Stride vectors_slot, const std::int64_t (&slot)[C::kGates],
                             std::int64_t j, Some units, Lanes<T> (&loaded)[C::kGates]) {
    for (int i = 0; i < C::kVectors; ++i)
        loaded[i] = units.load(vectors + (C::kVectors > 1 ? slot[i] : 0) * vectors_slot + j);
}

// The new state's parts of a state after a step: see Blends in shaders/common/step.glsl. Null without a blend.
template <class T>
struct Blend {
    const T* at = nullptr;
    Stride unit = 0;

    explicit operator bool() const { return at != nullptr; }
    template <class Some>
    HWY_INLINE Lanes<T> load(std::int64_t j, Some units) const {
        return unit == 0 ? Lanes<T>(static_cast<double>(*at)) : units.load(at + j);
    }
};

// Not inlined: the loops are faster without its code.
template <class T>
HWY_NOINLINE Lanes<T> blended(Lanes<T> share, Lanes<T> after, Lanes<T> before) {
    return part(share, after) + part(Lanes<T>(1.0) - share, before);
}

// Where a batch row has a step's inputs and results: the addresses of unit 0, and the strides between slots. What a
// cell does not have may be null.
template <class T>
struct ForwardRow {
    const T *vectors, *hidden_before, *cell_before;
    T *hidden, *cell, *training_state, *scaled_operand;
    Stride vectors_slot, before_slot, cell_slot, training_slot;
    bool keeps;  // whether `training_state` is stored
    Blend<T> blend{}, blend_cell{};
};

// Computes units from j on, from the sums x and r of gates [First, End). Of two phases, 1 and 2, the first one also
// stores the operand of the second, for which it needs the mask.
template <int First, int End, int Phase, class C, class T, class Some>
HWY_INLINE void step_units(C& cell, const ForwardRow<T>& row, const std::int64_t (&slot)[C::kGates], std::int64_t j,
                           Some units, const Lanes<T> (&x)[C::kGates], const Lanes<T> (&r)[C::kGates], Lanes<T> mask) {
    constexpr int kStates = C::kStates;
    Lanes<T> vectors[C::kGates], kept[C::kGates], before[kStates], after[kStates];
    load_vectors<C>(row.vectors, row.vectors_slot, slot, j, units, vectors);
    before[0] = units.load(row.hidden_before + j);
    for (int s = 1; s < kStates; ++s) before[s] = units.load(row.cell_before + (s - 1) * row.before_slot + j);

    if constexpr (Phase == 1) {
        cell.cell_forward_first(x, r, kept);
        units.store(before[0] * mask * kept[C::kScale], row.scaled_operand + j);
    } else {
        if constexpr (Phase == 2) {
            load_kept<First>(row.training_state, row.training_slot, slot, j, units, kept);
            cell.cell_forward_second(x, r, before, after, kept);
        } else {
            cell.cell_forward(x, r, vectors, before, after, kept);
        }
        if (HWY_UNLIKELY(row.blend)) after[0] = blended(row.blend.load(j, units), after[0], before[0]);
        if constexpr (kStates == 2)
            if (HWY_UNLIKELY(row.blend_cell)) after[1] = blended(row.blend_cell.load(j, units), after[1], before[1]);
        units.store(after[0], row.hidden + j);
        for (int s = 1; s < kStates; ++s) units.store(after[s], row.cell + (s - 1) * row.cell_slot + j);
    }
    if (row.keeps)
        for (int g = First; g < End; ++g) units.store(kept[g], row.training_state + slot[g] * row.training_slot + j);
}

// The same for a backward step. `down` is the gradient of the cell states from the later step, `carry` that for the
// earlier one. `upstream_cell` is null unless the cell states have gradients at every step.
template <class T>
struct BackwardRow {
    const T *upstream, *upstream_cell, *training_state, *vectors, *hidden_before, *cell_before, *cell, *cell_down,
        *product, *operand;
    T *delta, *recurrent_delta, *carry_hidden, *carry_cell;
    Stride training_slot, vectors_slot, before_slot, cell_slot, down_slot, carry_slot, delta_slot, recurrent_delta_slot;
    Stride upstream_cell_slot;
    bool scales_product;
    Blend<T> blend, blend_cell;
    T* blend_up;  // null unless the gradients of the parts are stored
};

// Takes the part of the gradient of a state after a blend that belongs to the state before, and leaves that of the
// cell's new state in `up`.
template <class T>
HWY_INLINE Lanes<T> past_part(const Blend<T>& blend, std::int64_t j, Units<T> units, Lanes<T>& up) {
    const Lanes<T> share = blend.load(j, units), past = part(Lanes<T>(1.0) - share, up);
    up = part(share, up);
    return past;
}

// `carried` is the gradient of h from the later step. `Blends`: whether there may be blends.
template <bool Blends, class C, class T>
HWY_INLINE void step_units_back(C& cell, const BackwardRow<T>& row, const std::int64_t (&slot)[C::kGates],
                                std::int64_t j, Units<T> units, Lanes<T> carried) {
    constexpr int kGates = C::kGates, kStates = C::kStates;
    Lanes<T> kept[kGates], vectors[kGates], before[kStates], after[kStates], up[kStates], q = 0.0;
    up[0] = carried + units.load(row.upstream + j);
    load_kept<kGates>(row.training_state, row.training_slot, slot, j, units, kept);
    load_vectors<C>(row.vectors, row.vectors_slot, slot, j, units, vectors);
    before[0] = after[0] = 0.0;
    if constexpr (C::kKeepsHidden || Blends) before[0] = units.load(row.hidden_before + j);
    if constexpr (C::kHasCandidate)
        if (row.scales_product) q = units.load(row.product + j);
    for (int s = 1; s < kStates; ++s) {
        up[s] = units.load(row.cell_down + (s - 1) * row.down_slot + j);
        if (row.upstream_cell != nullptr)
            up[s] = up[s] + units.load(row.upstream_cell + (s - 1) * row.upstream_cell_slot + j);
        before[s] = units.load(row.cell_before + (s - 1) * row.before_slot + j);
        after[s] = units.load(row.cell + (s - 1) * row.cell_slot + j);
    }
    Lanes<T> dx[kGates], dr[kGates], carry[kStates];
    Lanes<T> past[2] = {0.0, 0.0};
    if constexpr (Blends) {
        // After a blend, the states in memory are not the cell's.
        if constexpr (kStates == 2)
            if (row.blend_cell) after[1] = cell.cell_next(kept, before);
        if (row.blend_up != nullptr)
            units.store((cell.cell_hidden(kept, C::kKeepsHidden ? before : after) - before[0]) * up[0],
                        row.blend_up + j);
        if (row.blend) past[0] = past_part(row.blend, j, units, up[0]);
        if constexpr (kStates == 2)
            if (row.blend_cell) past[1] = past_part(row.blend_cell, j, units, up[1]);
    }
    cell.cell_backward(kept, vectors, before, after, q, up, dx, dr, carry);
    if constexpr (Blends)
        for (int s = 0; s < kStates && s < 2; ++s) carry[s] = carry[s] + past[s];
    for (int g = 0; g < kGates; ++g) units.store(dx[g], row.delta + slot[g] * row.delta_slot + j);
    if constexpr (C::kHasCandidate)
        if (row.scales_product)
            for (int g = 0; g < kGates; ++g)
                units.store(dr[g], row.recurrent_delta + slot[g] * row.recurrent_delta_slot + j);
    units.store(carry[0], row.carry_hidden + j);
    for (int s = 1; s < kStates; ++s) units.store(carry[s], row.carry_cell + (s - 1) * row.carry_slot + j);
}

// The same for a step with blends. Not inlined: the loop is faster without its code.
template <class C, class T>
HWY_NOINLINE void blended_units_back(C& cell, const BackwardRow<T>& row, const std::int64_t (&slot)[C::kGates],
                                     std::int64_t j, Units<T> units, Lanes<T> carried) {
    step_units_back<true>(cell, row, slot, j, units, carried);
}

// The second of two phases adds the gradient through the gate that scales the candidate's operand, of which `through`
// is the gradient.
template <class C, class T>
HWY_INLINE void second_units_back(C& cell, const BackwardRow<T>& row, const std::int64_t (&slot)[C::kGates],
                                  std::int64_t j, Units<T> units, Lanes<T> through, Lanes<T> mask) {
    T* const delta = row.delta + slot[C::kScale] * row.delta_slot + j;
    Lanes<T> kept[C::kGates], carry[C::kStates], scale_delta[1];
    load_kept<C::kGates>(row.training_state, row.training_slot, slot, j, units, kept);
    carry[0] = units.load(row.carry_hidden + j);
    scale_delta[0] = units.load(delta);
    cell.cell_backward_second(kept, through, units.load(row.operand + j), mask, scale_delta, carry);
    units.store(scale_delta[0], delta);
    units.store(carry[0], row.carry_hidden + j);
}

}  // namespace vkrnn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
