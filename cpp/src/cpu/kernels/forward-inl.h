// A cell's forward time loop. Compiled for each instruction set.
#pragma once

#include <algorithm>
#include <cstring>

#include "loop-inl.h"
#include "units-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vkrnn::cpu::HWY_NAMESPACE {

template <class C, class T>
class Forward : Loop<C, T> {
    using Base = Loop<C, T>;
    using Base::cell_, Base::has_mask_, Base::has_reset_, Base::keep_, Base::kGates, Base::kStates, Base::L,
        Base::masks_gates_, Base::member_, Base::mine_, Base::position, Base::previous, Base::row,
        Base::scales_product_, Base::slot_, Base::two_phases_, Base::units_, Base::views_, Base::W, Base::work_;
    using typename Base::Real;

public:
    using Base::Base;

    void run() {
        this->run_groups(shape(work_), [&] { run_group(); });
    }
    static LoopShape shape(const LoopWork& work) { return shape_with(work, work.features); }
    // The shape by which the loop's time is estimated. x W^T of several steps takes about a quarter of the time that it
    // takes step by step.
    static LoopShape timed_shape(const LoopWork& work) {
        const std::int64_t features = work.params.N < kManyRows ? work.features / 4 : work.features;
        return shape_with(work, features);
    }

private:
    static LoopShape shape_with(const LoopWork& work, std::int64_t features) {
        LoopShape shape = Base::shape_of(work, kGates, depth(work) + features);
        shape.tile_rows = kTileRows;
        shape.features = features;
        return shape;
    }

    // Returns the depth of the recurrent product.
    static std::int64_t depth(const LoopWork& work) { return work.recurs != 0 ? work.head_units : 0; }

    void run_group() {
        projected_ = {0, 0};
        const Range steps = this->piece_steps();
        if (steps.begin == 0) {
            this->clear_ended(abi::kHidden, 1);
            if (kStates > 1) this->clear_ended(abi::kCell, kStates - 1);
            if (keep_ != 0) this->clear_ended(abi::kTrainingState, kGates);
        }
        for (std::int64_t k = steps.begin; k < steps.end; ++k) {
            project_ahead(k);
            if (two_phases_) {
                if constexpr (C::kHasCandidate) {
                    phase<0, C::kCandidate, 1>(k);
                    if (!this->wait_at_barrier()) return;
                    project_ahead(k);  // for the units of members that have left
                    phase<C::kCandidate, kGates, 2>(k);
                }
            } else {
                phase<0, kGates, 0>(k);
            }
            if (!this->wait_at_barrier()) return;
        }
    }

    // A gate's sums begin with the bias. Then x W^T is added, and then the product with the recurrent weight. The order
    // is the same wherever x W^T is computed (see kManyRows), so results are bit-identical.
    [[nodiscard]] bool projects_ahead(std::int64_t k) const {
        return work_.features != 0 && this->live_rows(k) < kManyRows;
    }

    // Computes x W^T of the member's units for step k and some steps after it, unless that is done already.
    void project_ahead(std::int64_t k) {
        if (!projects_ahead(k) ||
            (k < projected_.end && projected_for_.begin == mine_.begin && projected_for_.end == mine_.end))
            return;
        const std::int64_t width = (mine_.end - mine_.begin) * L;
        projected_ = {k, k};
        projected_for_ = mine_;
        ahead_row_ = kGates * width + L;  // without + L, rows a power of two apart would share few cache sets
        ahead_ = static_cast<T*>(member_.scratch(2, sizeof(T) * static_cast<std::size_t>(kAheadRows * ahead_row_)));
        const T* features[kAheadRows];
        std::int64_t count = 0;
        for (const std::int64_t end = this->piece_steps().end; projected_.end < end; ++projected_.end) {
            const std::int64_t rows = this->live_rows(projected_.end);
            if (count + rows > kAheadRows) break;
            ahead_at_[projected_.end - k] = count;
            for (std::int64_t i = 0; i < rows; ++i)
                features[count++] = row(abi::kProjected, projected_.end, position(i));
        }
        start_sums(0, kGates, nullptr, count, mine_, ahead_, ahead_row_, width);
        this->multiply_gates(features, count, this->input_weights_, work_.features, 0, kGates, mine_, ahead_,
                             ahead_row_, width, false);
    }

    // Initializes the sums of gates [first, end) with the bias, plus x if it is given.
    void start_sums(int first, int end, const T* const* x, std::int64_t count, Range vectors, T* sums,
                    std::int64_t sums_row, std::int64_t sums_gate) const {
        const Tag<T> d;
        for (int g = first; g < end; ++g) {
            const T* const bias = row(abi::kBias, 0, 0) + slot_[g] * views_[abi::kBias].slot;
            const Stride x_slot = slot_[g] * views_[abi::kProjected].slot;
            for (std::int64_t v = vectors.begin; v < vectors.end; ++v) {
                const std::int64_t j = v * L, some = std::min(L, units_ - j);
                const auto start = work_.adds_bias != 0 ? load_vector(bias + j, some) : hn::Zero(d);
                T* const to = sums + (g - first) * sums_gate + (v - vectors.begin) * L;
                for (std::int64_t i = 0; i < count; ++i)
                    hn::StoreU(x == nullptr ? start : hn::Add(start, load_vector(x[i] + x_slot + j, some)), d,
                               to + i * sums_row);
            }
        }
    }

    // Returns a row that the recurrent product of a gate multiplies.
    const T* operand(std::int64_t k, std::int64_t i, int phase, int gate) const {
        if (phase == 2) return row(abi::kScaledOperand, k, position(i));
        if (has_mask_ || this->resets(k, position(i)))
            return prepared_ + (i * operands() + (masks_gates_ ? gate : 0)) * this->vectors_ * L;
        return previous(abi::kHidden, abi::kInitHidden, k, position(i));
    }

    // Returns how many rows each batch row's operand has: one, or one for each gate.
    [[nodiscard]] std::int64_t operands() const { return masks_gates_ ? kGates : 1; }

    // Computes the rows of the operand that are not h itself.
    void prepare_operand(std::int64_t k) {
        const std::int64_t rows = this->live_rows(k), apart = this->vectors_ * L;
        prepared_ =
            static_cast<T*>(member_.scratch(1, sizeof(T) * static_cast<std::size_t>(rows * operands() * apart)));
        for (std::int64_t i = 0; i < rows; ++i) {
            const std::int64_t n = position(i);
            T* out = prepared_ + i * operands() * apart;
            const T* hidden =
                this->before(abi::kHidden, abi::kInitHidden, abi::kResetState, k, n, 1, {0, units_}, out).at;
            if (!has_mask_) continue;
            for (std::int64_t j = 0; j < units_; j += W) {
                const std::int64_t count = std::min(W, units_ - j);
                const Real some = load(hidden + j, count);
                for (std::int64_t g = 0; g < operands(); ++g)
                    store(some * this->mask(k, n, slot_[g], j, count), out + g * apart + j, count);
            }
        }
    }

    // The addresses and strides of the gates' sums for some batch rows. If the cell scales the candidate's recurrent
    // product, that has sums of its own.
    struct Sums {
        T* gates;
        std::int64_t row, gate;
        T* candidate;
    };

    template <int First, int End, int Phase>
    void phase(std::int64_t k) {
        constexpr std::int64_t kCount = End - First;
        const bool multiplies = this->recurs_ && (k > 0 || work_.has_initial != 0), ahead = projects_ahead(k);
        if (multiplies && (has_mask_ || has_reset_) && Phase != 2) prepare_operand(k);
        const std::int64_t live = this->live_rows(k), chunks = (live + kChunkRows - 1) / kChunkRows;
        const std::int64_t height = (live + chunks - 1) / chunks;
        const bool apart = C::kHasCandidate && Phase == 0 && scales_product_;
        const std::int64_t of_vector = height * (kCount + (apart ? 1 : 0)) * L;
        const std::int64_t weights = std::max<std::int64_t>(1, depth(work_) + (ahead ? 0 : work_.features));
        const Stripes stripes(mine_, widest_tile(height), of_vector * std::int64_t{sizeof(T)},
                              kCount * weights * L * std::int64_t{sizeof(T)}, k % 2 != 0);
        T* const memory =
            static_cast<T*>(member_.scratch(0, sizeof(T) * static_cast<std::size_t>(of_vector * stripes.widest())));
        const T* operands[kChunkRows];
        for (std::int64_t stripe = 0; stripe < stripes.count(); ++stripe) {
            const Range vectors = stripes.at(stripe);
            const std::int64_t width = (vectors.end - vectors.begin) * L;
            for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
                if (member_.stopped()) return;
                const Range rows = part_of(live, chunk, chunks);
                const std::int64_t top = rows.begin, count = rows.end - rows.begin;
                Sums sums{memory, kCount * width, width, memory + count * kCount * width};
                if (ahead) {
                    const std::int64_t all = (mine_.end - mine_.begin) * L;
                    const std::int64_t at = ahead_at_[k - projected_.begin] + top;
                    sums.gates = ahead_ + at * ahead_row_ + First * all + (vectors.begin - mine_.begin) * L;
                    sums.row = ahead_row_;
                    sums.gate = all;
                } else {
                    for (std::int64_t i = 0; i < count; ++i) operands[i] = row(abi::kProjected, k, position(top + i));
                    start_sums(First, End, work_.features != 0 ? nullptr : operands, count, vectors, sums.gates,
                               sums.row, sums.gate);
                    if (work_.features != 0)
                        this->multiply_gates(operands, count, this->input_weights_, work_.features, First, End, vectors,
                                             sums.gates, sums.row, sums.gate, false);
                }
                if (apart) std::memset(sums.candidate, 0, sizeof(T) * static_cast<std::size_t>(count * width));
                for (int g = First, end = 0; multiplies && g < End; g = end) {
                    const bool alone = apart && g == End - 1;  // the candidate with sums of its own
                    end = masks_gates_ ? g + 1 : apart && !alone ? End - 1 : End;
                    for (std::int64_t i = 0; i < count; ++i) operands[i] = operand(k, top + i, Phase, g);
                    this->multiply_gates(operands, count, this->weights_, work_.head_units, g, end, vectors,
                                         alone ? sums.candidate : sums.gates + (g - First) * sums.gate,
                                         alone ? width : sums.row, alone ? width : sums.gate, this->one_row(k));
                }
                for (std::int64_t i = 0; i < count; ++i)
                    step<First, End, Phase>(k, position(top + i), vectors, sums.gates + i * sums.row, sums.gate,
                                            apart ? sums.candidate + i * width : nullptr);
            }
        }
    }

    // Computes the cell for some units of a batch row from the sums of its gates, which are `sums_gate` elements apart.
    template <int First, int End, int Phase>
    HWY_INLINE void step(std::int64_t k, std::int64_t n, Range vectors, const T* sums, std::int64_t sums_gate,
                         const T* candidate) {
        const Range units = this->units_of(vectors);
        typename Base::States hidden_before{previous(abi::kHidden, abi::kInitHidden, k, n), 0}, cell_before{};
        T* const reset = has_reset_ ? this->room_for_reset() : nullptr;
        if (C::kKeepsHidden || this->blends_hidden_)
            hidden_before = this->before(abi::kHidden, abi::kInitHidden, abi::kResetState, k, n, 1, units, reset);
        if constexpr (kStates > 1)
            cell_before =
                this->before(abi::kCell, abi::kInitCell, abi::kResetCell, k, n, kStates - 1, units, reset + units_);
        const ForwardRow<T> at{
            .vectors = row(abi::kVectors, 0, 0),
            .hidden_before = hidden_before.at,
            .cell_before = cell_before.at,
            .hidden = row(abi::kHidden, k, n),
            .cell = kStates > 1 ? row(abi::kCell, k, n) : nullptr,
            .training_state = row(abi::kTrainingState, k, n),
            .scaled_operand = Phase == 1 ? row(abi::kScaledOperand, k, n) : nullptr,
            .vectors_slot = views_[abi::kVectors].slot,
            .before_slot = cell_before.slot,
            .cell_slot = views_[abi::kCell].slot,
            .training_slot = views_[abi::kTrainingState].slot,
            .keeps = keep_ != 0 || Phase == 1,
            .blend = this->blend(k, n),
            .blend_cell = this->blend_cell(k, n),
        };
        for (std::int64_t j = units.begin; j < units.end; j += W) {
            const Units<T> some{std::min(W, units.end - j)};
            Real x[kGates], r[kGates], mask = 1.0;
            for (int g = First; g < End; ++g) {
                x[g] = some.load(sums + (g - First) * sums_gate + (j - units.begin));
                r[g] = 0.0;
            }
            if (candidate != nullptr) r[End - 1] = some.load(candidate + (j - units.begin));
            if constexpr (Phase == 1) mask = this->mask(k, n, slot_[C::kCandidate], j, some.count);
            step_units<First, End, Phase>(cell_, at, slot_, j, some, x, r, mask);
        }
    }

    T* prepared_ = nullptr;
    // x W^T computed in advance: its steps, its units, and the first row of each step.
    Range projected_{0, 0}, projected_for_{0, 0};
    std::int64_t ahead_at_[kAheadRows];
    T* ahead_ = nullptr;
    std::int64_t ahead_row_ = 0;  // its stride between rows
};

}  // namespace vkrnn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
