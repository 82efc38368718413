// A cell's backward time loop, and the kernel that recomputes the forward operands before it. Compiled for each
// instruction set.
#pragma once

#include <algorithm>
#include <cstring>

#include "loop-inl.h"
#include "units-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vkrnn::cpu::HWY_NAMESPACE {

// The base of the kernels that need h before a step.
template <class C, class T>
class HiddenBefore : public Loop<C, T> {
protected:
    using Base = Loop<C, T>;
    using Base::Base, Base::cell_, Base::kGates, Base::kStarts, Base::kStates, Base::previous, Base::row, Base::slot_,
        Base::views_;
    using typename Base::Real;

    // Returns h before step k and its reset: the initial state, or h of step k - 1, from the training state if need be.
    // After a blend, h does not follow from the training state.
    Real hidden(std::int64_t k, std::int64_t n, std::int64_t j, std::int64_t count) {
        if constexpr (C::kKeepsHidden) {
            return load(previous(abi::kHidden, abi::kInitHidden, k, n) + j, count);
        } else {
            if (HWY_UNLIKELY(this->blends())) return load(previous(abi::kHidden, abi::kInitHidden, k, n) + j, count);
            if (k == 0) return load(row(abi::kInitHidden, 0, n) + j, count);
            Real kept[kGates], after[kStates];
            load_kept<kGates>(row(abi::kTrainingState, k - 1, n), views_[abi::kTrainingState].slot, slot_, j,
                              Units<T>{count}, kept);
            for (int s = 1; s < kStates; ++s)
                after[s] = load(row(abi::kCell, k - 1, n) + (s - 1) * views_[abi::kCell].slot + j, count);
            return cell_.cell_hidden(kept, after);
        }
    }
};

// Recomputes the operand of each step's recurrent product, h[k-1] * m[k] for each mask m, from the training state, for
// the weight gradients. With peephole weights it also copies c[k-1], and c[k] if a peephole weight multiplies that.
// Steps and rows are independent of each other.
template <class C, class T>
class Recompute : HiddenBefore<C, T> {
    using Base = HiddenBefore<C, T>;
    using Base::batch_, Base::cell_, Base::has_lengths_, Base::hidden, Base::keep_, Base::kGates, Base::kStates,
        Base::L, Base::live_, Base::member_, Base::previous, Base::row, Base::slot_, Base::steps_, Base::two_phases_,
        Base::units_, Base::views_, Base::W;
    using typename Base::Real;

public:
    using Base::Base;

    void run() {
        const std::int64_t rows = has_lengths_ ? live_.count() : steps_ * batch_;
        const Range mine = part_of(this->blocks() * rows, member_.rank(), member_.size());
        std::int64_t k = 0, first = 0;  // the step of a row, and that step's first row
        for (std::int64_t i = mine.begin; i < mine.end; ++i) {
            const std::int64_t at = i % rows;
            if (i == mine.begin || at == 0) {
                this->use_block(i / rows);
                k = step_of(at);
                first = row_before(k);
            }
            if (member_.stopped()) return;
            if (at == row_before(k + 1)) first = row_before(++k);
            recompute(k, at - first);
        }
    }
    // The shape of a loop of a single step with hardly any product: the rows of all steps count as its rows.
    static LoopShape shape(const LoopWork& work) {
        LoopShape shape = Base::shape_of(work, kGates, 1);
        shape.rows *= shape.steps;
        shape.steps = 1;
        return shape;
    }

private:
    // Returns the number of rows in the steps before k.
    [[nodiscard]] std::int64_t row_before(std::int64_t k) const {
        return has_lengths_ ? live_.firsts()[k] : k * batch_;
    }
    [[nodiscard]] std::int64_t step_of(std::int64_t at) const {
        if (!has_lengths_) return at / batch_;
        return std::upper_bound(live_.firsts(), live_.firsts() + steps_, at) - live_.firsts() - 1;
    }

    // Computes the cell state of a step again, from the one before it: after a blend, the one in memory is another.
    void next_cells(std::int64_t k, std::int64_t n) {
        if constexpr (kStates == 2) {
            T* const cells = row(abi::kPreviousCell, k, n);
            for (std::int64_t j = 0; j < units_; j += W) {
                const Units<T> some{std::min(W, units_ - j)};
                Real kept[kGates];
                load_kept<kGates>(row(abi::kTrainingState, k, n), views_[abi::kTrainingState].slot, slot_, j, some,
                                  kept);
                const Real before[kStates] = {0.0, some.load(cells + j)};
                some.store(cell_.cell_next(kept, before), cells + views_[abi::kPreviousCell].slot + j);
            }
        }
    }

    void recompute(std::int64_t k, std::int64_t n) {
        const int cells = kStates > 1 ? static_cast<int>(keep_) : 0;
        T* const operand = row(abi::kOperand, k, n);
        const std::size_t bytes = static_cast<std::size_t>(units_) * sizeof(T);
        if (cells > 0) {
            T* const to = row(abi::kPreviousCell, k, n);
            const T* const cell =
                this->before(abi::kCell, abi::kInitCell, abi::kResetCell, k, n, 1, {0, units_}, to).at;
            if (cell != to) std::memcpy(to, cell, bytes);
        }
        const bool resets = this->resets(k, n);
        if (cells > 1 && this->blends_cell_)
            next_cells(k, n);
        else if (cells > 1)
            std::memcpy(row(abi::kPreviousCell, k, n) + views_[abi::kPreviousCell].slot, row(abi::kCell, k, n), bytes);
        for (std::int64_t j = 0; j < units_; j += W) {
            const std::int64_t count = std::min(W, units_ - j);
            Real value = hidden(k, n, j, count);
            if (resets) value = this->reset(0, value, row(abi::kResetState, k - this->direction_, n), k, n, j, count);
            for (std::int64_t slot = 0; slot < (this->masks_gates_ ? kGates : 1); ++slot)
                store(value * this->mask(k, n, slot, j, count), operand + slot * views_[abi::kOperand].slot + j, count);
            if constexpr (C::kHasCandidate) {
                if (two_phases_) {
                    const T* const scale =
                        row(abi::kTrainingState, k, n) + slot_[C::kScale] * views_[abi::kTrainingState].slot;
                    value = value * this->mask(k, n, slot_[C::kCandidate], j, count);
                    store(value * load(scale + j, count), row(abi::kScaledOperand, k, n) + j, count);
                }
            }
        }
    }
};

// After a backward loop with resets: the gradients of their factors and of the states that they start from, of the
// units and steps of each batch row. Bit i of kKeep says whether view kResetGradient + i is wanted.
template <class C, class T>
class ResetGradients : HiddenBefore<C, T> {
    using Base = HiddenBefore<C, T>;
    using Base::batch_, Base::direction_, Base::hidden, Base::keep_, Base::kStarts, Base::kStates, Base::member_,
        Base::previous, Base::previous_slot, Base::row, Base::units_, Base::views_, Base::W;
    using typename Base::Real;

public:
    using Base::Base;

    void run() {
        const Range mine = part_of(this->blocks() * batch_, member_.rank(), member_.size());
        for (std::int64_t i = mine.begin; i < mine.end; ++i) {
            if (member_.stopped()) return;
            this->use_block(i / batch_);
            const std::int64_t n = i % batch_, steps = this->length_of(n);
            clear(abi::kResetStateGradient, n);
            if (kStates > 1) clear(abi::kResetCellGradient, n);
            for (std::int64_t k = direction_; k < steps; ++k) step(k, n);
        }
    }
    static LoopShape shape(const LoopWork& work) {
        LoopShape shape = Base::shape_of(work, 1, 1);
        shape.rows *= shape.steps;
        shape.steps = 1;
        return shape;
    }

private:
    [[nodiscard]] bool wants(abi::uint view) const { return (keep_ >> (view - abi::kResetGradient) & 1U) != 0; }

    // Clears the gradient of a state that is the same at all steps, to which these add.
    void clear(abi::uint view, std::int64_t n) const {
        if (!wants(view) || views_[view].step != 0) return;
        std::memset(row(view, 0, n), 0, sizeof(T) * static_cast<std::size_t>(units_));
    }

    // Adds a step's part of the gradient of the start of state s. Returns its part of that of the factor.
    HWY_INLINE Real state(int s, Real before, Real up, std::int64_t k, std::int64_t n, std::int64_t j,
                          std::int64_t count) const {
        if (s == C::kStabilizer) return Real(0.0);
        if (s >= kStarts) return before * up;
        const abi::uint starts = s > 0 ? abi::kResetCell : abi::kResetState;
        const abi::uint gradient = s > 0 ? abi::kResetCellGradient : abi::kResetStateGradient;
        const std::int64_t at = k - direction_;
        if (wants(gradient)) {
            T* const to = row(gradient, at, n) + j;
            const Real some = part(Real(1.0) - this->factor(k, n, j, count), up);
            store(views_[gradient].step == 0 ? load(to, count) + some : some, to, count);
        }
        return (before - load(row(starts, at, n) + j, count)) * up;
    }

    void store_factors(Real gradients, T* to, std::int64_t j, std::int64_t count) const {
        const Stride unit = views_[abi::kResetGradient].unit;
        if (unit == 1) return store(gradients, to + j, count);
        T some[W];
        store(gradients, some, W);
        for (std::int64_t i = 0; i < count; ++i) to[(j + i) * unit] = some[i];
    }

    void step(std::int64_t k, std::int64_t n) {
        const std::int64_t at = k - direction_;
        for (std::int64_t j = 0; j < units_; j += W) {
            const std::int64_t count = std::min(W, units_ - j);
            Real sum = state(0, hidden(k, n, j, count), load(row(abi::kResetUp, at, n) + j, count), k, n, j, count);
            for (int slot = 0; slot < kStates - 1; ++slot)
                sum += state(slot + 1,
                             load(previous(abi::kCell, abi::kInitCell, k, n) +
                                      slot * previous_slot(abi::kCell, abi::kInitCell, k) + j,
                                  count),
                             load(row(abi::kResetUpCell, at, n) + slot * views_[abi::kResetUpCell].slot + j, count), k,
                             n, j, count);
            if (wants(abi::kResetGradient)) store_factors(sum, row(abi::kResetGradient, at, n), j, count);
        }
    }
};

template <class C, class T>
class Backward : Loop<C, T> {
    using Base = Loop<C, T>;
    using Base::cell_, Base::direction_, Base::has_reset_, Base::has_upstream_cell_, Base::keeps_reset_up_,
        Base::kGates, Base::kStates, Base::L, Base::masks_gates_, Base::member_, Base::mine_, Base::position,
        Base::previous, Base::row, Base::scales_product_, Base::slot_, Base::two_phases_, Base::units_, Base::views_,
        Base::W, Base::work_;
    using typename Base::Real;

public:
    using Base::Base;

    void run() {
        this->run_groups(shape(work_), [&] { run_group(); });
    }
    static LoopShape shape(const LoopWork& work) {
        return Base::shape_of(work, 1, work.recurs != 0 ? kGates * work.head_units : 0);
    }
    static LoopShape timed_shape(const LoopWork& work) { return shape(work); }

private:
    // The candidate's slot, if there is a candidate. It is the last in either gate order.
    static constexpr std::int64_t kCandidateSlot = kGates - 1;

    void run_group() {
        const std::int64_t steps = this->group_steps();
        const Range piece = this->piece_steps();
        if (work_.steps_after == 0) {
            this->clear_ended(abi::kDelta, kGates);
            if (scales_product_) this->clear_ended(abi::kRecurrentDelta, kGates);
            pass_unused();
        }
        for (std::int64_t k = piece.end - 1; k >= piece.begin; --k) {
            // The first of two phases takes the gates in the slots before the candidate's.
            phase<1>(k, k + 1, 0, two_phases_ ? kCandidateSlot : kGates, k + 1 < steps);
            if (!this->wait_at_barrier()) return;
            if constexpr (C::kHasCandidate) {
                if (!two_phases_) continue;
                phase<2>(k, k, kCandidateSlot, kGates, true);
                if (!this->wait_at_barrier()) return;
            }
        }
        // The gradient that step 0 passes back is that of the initial state.
        if (work_.has_initial != 0 && piece.begin == 0 && steps > 0)
            phase<1>(-1, 0, 0, two_phases_ ? kCandidateSlot : kGates, true);
    }

    // Copies the gradients of the last states to those of the initial states, for rows of length 0.
    void pass_unused() const {
        const Range units = this->units_of(mine_);
        const std::size_t bytes = static_cast<std::size_t>(units.end - units.begin) * sizeof(T);
        const auto copy = [&](abi::uint last, abi::uint carry, std::int64_t n, int slot) {
            std::memcpy(row(carry, 0, n) + slot * views_[carry].slot + units.begin,
                        row(last, 0, n) + slot * views_[last].slot + units.begin, bytes);
        };
        for (std::int64_t i = this->live_rows(0); i < this->count_; ++i) {
            copy(abi::kLastHidden, abi::kCarryHidden, position(i), 0);
            for (int s = 1; s < kStates; ++s) copy(abi::kLastCell, abi::kCarryCell, position(i), s - 1);
        }
    }

    // Multiplies the deltas of step `of`, slots [first, end), by the weights, and passes the sums to the cell at step
    // k. Batch rows that are not live at step `of` have no deltas there.
    template <int Phase>
    void phase(std::int64_t k, std::int64_t of, std::int64_t first, std::int64_t end, bool multiplies) {
        const std::int64_t live = this->live_rows(std::max<std::int64_t>(k, 0));
        const std::int64_t handing_down = multiplies && this->recurs_ ? this->live_rows(of) : 0;
        const std::int64_t chunks = (live + kChunkRows - 1) / kChunkRows, height = (live + chunks - 1) / chunks;
        const std::int64_t depth = (end - first) * work_.head_units;
        const bool masks = masks_gates_ && Phase == 1;
        const std::int64_t of_vector = (masks ? 2 : 1) * height * L;
        const Stripes stripes(mine_, widest_tile(height), of_vector * std::int64_t{sizeof(T)},
                              depth * L * std::int64_t{sizeof(T)}, k % 2 != 0);
        T* const sums =
            static_cast<T*>(member_.scratch(0, sizeof(T) * static_cast<std::size_t>(of_vector * stripes.widest())));
        for (std::int64_t stripe = 0; stripe < stripes.count(); ++stripe) {
            const Range vectors = stripes.at(stripe);
            const std::int64_t width = (vectors.end - vectors.begin) * L;
            for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
                if (member_.stopped()) return;
                const Range rows = part_of(live, chunk, chunks);
                const std::int64_t top = rows.begin, count = rows.end - rows.begin;
                const std::int64_t some = std::min(count, handing_down - top);
                std::memset(sums, 0, sizeof(T) * static_cast<std::size_t>(count * width));
                if (some > 0 && masks)
                    multiply_masked(of, {top, top + some}, first, end, vectors, sums, sums + count * width);
                else if (some > 0)
                    multiply_deltas(of, {top, top + some}, first, end, vectors, sums);
                for (std::int64_t i = 0; i < count; ++i) {
                    if constexpr (Phase == 2) {
                        second(k, position(top + i), vectors, sums + i * width);
                    } else {
                        step(k, position(top + i), vectors, sums + i * width);
                    }
                }
            }
        }
    }

    // Adds the products of the deltas of step `of`, of some batch rows and slots [first, end), with the weights.
    HWY_INLINE void multiply_deltas(std::int64_t of, Range rows, std::int64_t first, std::int64_t end, Range vectors,
                                    T* sums) const {
        const std::int64_t count = rows.end - rows.begin, panel = kGates * units_ * L;
        const T* operands[kChunkRows];
        for (std::int64_t i = 0; i < count; ++i)
            operands[i] = row(abi::kRecurrentDelta, of, position(rows.begin + i)) + first * work_.params.H;
        if (work_.head_units != work_.params.H)
            multiply_slots(operands, count, first, end, vectors, sums, this->one_row(of));
        else
            this->multiply(operands, count, this->weights_.panels + vectors.begin * panel + first * units_ * L, panel,
                           (end - first) * work_.head_units, vectors.end - vectors.begin, sums,
                           (vectors.end - vectors.begin) * L, this->one_row(of));
    }

    // The same with each slot's product, which is computed in `some`, times its mask.
    HWY_NOINLINE void multiply_masked(std::int64_t of, Range rows, std::int64_t first, std::int64_t end, Range vectors,
                                      T* sums, T* some) const {
        const std::int64_t count = rows.end - rows.begin, width = (vectors.end - vectors.begin) * L;
        const Range units = this->units_of(vectors);
        for (std::int64_t slot = first; slot < end; ++slot) {
            std::memset(some, 0, sizeof(T) * static_cast<std::size_t>(count * width));
            multiply_deltas(of, rows, slot, slot + 1, vectors, some);
            for (std::int64_t i = 0; i < count; ++i)
                for (std::int64_t j = units.begin; j < units.end; j += W) {
                    const std::int64_t at = i * width + (j - units.begin), left = std::min(W, units.end - j);
                    const Real masked = load(some + at, left) * this->mask(of, position(rows.begin + i), slot, j, left);
                    store(load(sums + at, left) + masked, sums + at, left);
                }
        }
    }

    // Multiplies the deltas of slots [first, end), slot by slot, by the weights of heads. `operand` has the first slot.
    void multiply_slots(const T** operand, std::int64_t count, std::int64_t first, std::int64_t end, Range vectors,
                        T* sums, bool one_row) const {
        const std::int64_t panel = work_.head_units * L, width = (vectors.end - vectors.begin) * L;
        for (std::int64_t slot = first; slot < end; ++slot) {
            const T* const panels = this->weights_.panels + slot * this->vectors_ * panel;
            if (this->weights_.heads.several)
                this->multiply_heads(operand, count, this->weights_.heads, work_.head_units, &panels, 1, vectors, sums,
                                     width, 0, one_row);
            else
                this->multiply(operand, count, panels + vectors.begin * panel, panel, work_.head_units,
                               vectors.end - vectors.begin, sums, width, one_row);
            for (std::int64_t i = 0; i < count; ++i) operand[i] += work_.params.H;
        }
    }

    HWY_INLINE void step(std::int64_t k, std::int64_t n, Range vectors, const T* sums) {
        const Range units = this->units_of(vectors);
        const bool last = k == this->length_of(n) - 1;
        const bool keeps = keeps_reset_up_ && !last && k + 1 >= direction_, resets = !last && this->resets(k + 1, n);
        T* const carry_hidden = row(abi::kCarryHidden, 0, n);
        const T* const handed_down = last ? row(abi::kLastHidden, 0, n) : carry_hidden;
        const auto carried = [&](std::int64_t j, Units<T> some) HWY_ATTR {
            const Real down = some.load(handed_down + j);
            if (last) return down;
            const Real mask = masks_gates_ ? Real(1.0) : this->mask(k + 1, n, 0, j, some.count);
            Real up = down + some.load(sums + (j - units.begin)) * mask;
            if (keeps) some.store(up, row(abi::kResetUp, k + 1 - direction_, n) + j);
            if (resets) up = part(this->factor(k + 1, n, j, some.count), up);
            return HWY_LIKELY(!this->has_gradient_clip_) ? up : clipped<T>(up, this->gradient_clip_);
        };
        if (keeps || resets) pass_cells(k + 1, n, units, keeps, resets);
        if (k < 0) {
            for (std::int64_t j = units.begin; j < units.end; j += W) {
                const Units<T> some{std::min(W, units.end - j)};
                some.store(carried(j, some), carry_hidden + j);
            }
            return;
        }
        T* const reset = has_reset_ ? this->room_for_reset() : nullptr;
        BackwardRow<T> at{};
        at.upstream = row(abi::kUpstream, k, n);
        at.training_state = row(abi::kTrainingState, k, n);
        at.vectors = row(abi::kVectors, 0, 0);
        at.delta = row(abi::kDelta, k, n);
        at.recurrent_delta = row(abi::kRecurrentDelta, k, n);
        at.carry_hidden = carry_hidden;
        if (C::kKeepsHidden || this->blends())
            at.hidden_before = this->before(abi::kHidden, abi::kInitHidden, abi::kResetState, k, n, 1, units, reset).at;
        if constexpr (C::kHasCandidate) at.product = row(abi::kProduct, k, n);
        if constexpr (kStates > 1) {
            const auto cells =
                this->before(abi::kCell, abi::kInitCell, abi::kResetCell, k, n, kStates - 1, units, reset + units_);
            at.cell_before = cells.at;
            at.before_slot = cells.slot;
            at.cell = row(abi::kCell, k, n);
            at.carry_cell = row(abi::kCarryCell, 0, n);
            at.cell_down = last ? row(abi::kLastCell, 0, n) : at.carry_cell;
            if (has_upstream_cell_) at.upstream_cell = row(abi::kUpstreamCell, k, n);
        }
        at.training_slot = views_[abi::kTrainingState].slot;
        at.vectors_slot = views_[abi::kVectors].slot;
        at.cell_slot = views_[abi::kCell].slot;
        at.down_slot = views_[last ? abi::kLastCell : abi::kCarryCell].slot;
        at.carry_slot = views_[abi::kCarryCell].slot;
        at.upstream_cell_slot = views_[abi::kUpstreamCell].slot;
        at.delta_slot = views_[abi::kDelta].slot;
        at.recurrent_delta_slot = views_[abi::kRecurrentDelta].slot;
        at.scales_product = scales_product_;
        at.blend = this->blend(k, n);
        at.blend_cell = this->blend_cell(k, n);
        if (this->keeps_blend_up_) at.blend_up = row(abi::kBlendUp, k, n);
        for (std::int64_t j = units.begin; j < units.end; j += W) {
            const Units<T> some{std::min(W, units.end - j)};
            if (HWY_LIKELY(!this->blends()))
                step_units_back<false>(cell_, at, slot_, j, some, carried(j, some));
            else
                blended_units_back(cell_, at, slot_, j, some, carried(j, some));
        }
    }

    // Takes the gradients of the cell states through the reset of step k, and keeps those before it.
    void pass_cells(std::int64_t k, std::int64_t n, Range units, bool keeps, bool resets) {
        for (int slot = 0; slot < kStates - 1; ++slot) {
            T* const carry = row(abi::kCarryCell, 0, n) + slot * views_[abi::kCarryCell].slot;
            if (keeps)
                std::copy(
                    carry + units.begin, carry + units.end,
                    row(abi::kResetUpCell, k - direction_, n) + slot * views_[abi::kResetUpCell].slot + units.begin);
            for (std::int64_t j = units.begin; resets && j < units.end; j += W) {
                const std::int64_t count = std::min(W, units.end - j);
                store(part(this->factor(slot + 1, k, n, j, count), load(carry + j, count)), carry + j, count);
            }
        }
    }

    HWY_INLINE void second(std::int64_t k, std::int64_t n, Range vectors, const T* sums) {
        if constexpr (C::kHasCandidate) {
            BackwardRow<T> at{};
            at.training_state = row(abi::kTrainingState, k, n);
            const std::int64_t candidate = slot_[C::kCandidate];
            at.operand = row(abi::kOperand, k, n) + candidate * views_[abi::kOperand].slot;
            at.delta = row(abi::kDelta, k, n);
            at.carry_hidden = row(abi::kCarryHidden, 0, n);
            at.training_slot = views_[abi::kTrainingState].slot;
            at.delta_slot = views_[abi::kDelta].slot;
            const Range units = this->units_of(vectors);
            for (std::int64_t j = units.begin; j < units.end; j += W) {
                const Units<T> some{std::min(W, units.end - j)};
                second_units_back(cell_, at, slot_, j, some, some.load(sums + (j - units.begin)),
                                  this->mask(k, n, candidate, j, some.count));
            }
        }
    }
};

}  // namespace vkrnn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
