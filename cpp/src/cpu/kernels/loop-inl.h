// The time loops of a cell: forward, the replay before the way back, and back. Included once for each instruction set.
//
// Threads are in teams, each of which takes groups of batch rows of one direction through all steps; its members have
// units of their own and meet in every step (see split.h).
#if defined(VKRNN_CPU_LOOP_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef VKRNN_CPU_LOOP_INL_H
#undef VKRNN_CPU_LOOP_INL_H
#else
#define VKRNN_CPU_LOOP_INL_H
#endif

#include <algorithm>
#include <cstring>

#include "product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vkrnn::cpu::HWY_NAMESPACE {

// Batch rows whose sums are formed, and then handed to the cell, together: the weights are loaded once for them all.
inline constexpr std::int64_t kChunkRows = 96;

// A tensor for one direction: see abi.h.
template <class T>
struct View {
    T* at;
    Stride step, row, slot, unit;

    HWY_INLINE Lanes<T> read(const T* row_at, std::int64_t slot_number, std::int64_t j, std::int64_t count) const {
        const T* p = row_at + slot_number * slot;
        if (unit == 0) return Lanes<T>(hn::Set(Tag<T>(), *p));
        return load(p + j, count);
    }
};

// What the loops of a call have in common: its tensors for one direction, and where their elements are.
template <class C, class T>
class Loop {
public:
    static constexpr std::int64_t L = kLanes<T>;
    static constexpr int kGates = C::kGates, kStates = C::kStates, kVectors = C::kVectors;
    using Real = Lanes<T>;

    Loop(const LoopWork& work, const std::uint32_t* constants, Member& member)
        : work_(work), cell_{constants}, member_(member), steps_(work.params.T), batch_(work.params.N),
          units_(work.params.H), vectors_((units_ + L - 1) / L), has_mask_(constants[abi::kHasMask] != 0),
          has_lengths_(constants[abi::kHasLengths] != 0), keep_(constants[abi::kKeep] != 0),
          reset_after_(constants[abi::kResetAfter] != 0), two_phases_(work.two_phases != 0) {
        for (int g = 0; g < kGates; ++g) slot_[g] = constants[abi::kGateOrder] >> (4 * g) & 15U;
    }

protected:
    static LoopShape shape_of(const LoopWork& work, std::int64_t products, std::int64_t depth) {
        return {work.params.T, work.params.N, work.directions, (work.params.H + L - 1) / L, products,
                depth,         L,             sizeof(T),       work.two_phases != 0 ? 2 : 1};
    }

    void use_direction(std::int64_t direction) {
        direction_ = direction;
        for (abi::uint v = 0; v < abi::kViews; ++v) {
            const abi::Strides& strides = work_.params.strides[v];
            views_[v] = {pointer<T>(work_.params.at[2 * v + static_cast<std::size_t>(direction)]),
                         strides.step[direction], strides.row, strides.slot, strides.unit};
        }
        weights_ = pointer<const T>(work_.params.weights[direction]);
        input_weights_ = pointer<const T>(work_.input_weights[direction]);
    }

    [[nodiscard]] std::int64_t length_of(std::int64_t n) const {
        return has_lengths_ ? pointer<const std::int32_t>(work_.params.lengths)[n] : steps_;
    }
    [[nodiscard]] bool has_ended(std::int64_t n, std::int64_t k) const { return has_lengths_ && k >= length_of(n); }

    // Where slot 0, unit 0 of a tensor stands for a step and batch row. A step past the row's end reads the last one;
    // nobody uses what it reads.
    HWY_INLINE T* row(abi::uint view, std::int64_t k, std::int64_t n) const {
        const View<T>& v = views_[view];
        if (HWY_UNLIKELY(has_lengths_)) {
            const std::int64_t end = length_of(n);
            k = std::min(k, end - 1);
            if (v.step < 0) k += steps_ - end;
        }
        return v.at + k * v.step + n * v.row;
    }
    // The row that step k, past the end of batch row n, stands for: row k of the time axis.
    T* row_past_end(abi::uint view, std::int64_t k, std::int64_t n) const {
        const View<T>& v = views_[view];
        return v.at + (v.step < 0 ? steps_ - 1 - k : k) * v.step + n * v.row;
    }
    void clear(abi::uint view, std::int64_t k, std::int64_t n, std::int64_t slots, Range units) const {
        T* const at = row_past_end(view, k, n);
        for (std::int64_t slot = 0; slot < slots; ++slot)
            std::memset(at + slot * views_[view].slot + units.begin, 0,
                        static_cast<std::size_t>(units.end - units.begin) * sizeof(T));
    }
    // The state that step k starts from.
    HWY_INLINE T* previous(abi::uint sequence, abi::uint initial, std::int64_t k, std::int64_t n) const {
        return k == 0 ? row(initial, 0, n) : row(sequence, k - 1, n);
    }
    HWY_INLINE Real mask(std::int64_t k, std::int64_t n, std::int64_t j, std::int64_t count) const {
        return has_mask_ ? views_[abi::kMask].read(row(abi::kMask, k, n), 0, j, count) : Real(1.0);
    }
    [[nodiscard]] Range units_of(Range vectors) const {
        return {std::min(units_, vectors.begin * L), std::min(units_, vectors.end * L)};
    }

    // Runs `body` for every group of this member's team.
    template <class Body>
    void run_groups(const LoopShape& shape, const Body& body) {
        const Split split = choose_split(shape, member_.size(), member_.contended());
        const unsigned team = member_.rank() / split.unit_parts;
        if (team >= split.teams) return;
        own_ = member_.rank() % split.unit_parts;
        meeting_ = 1 + team;
        for (std::int64_t group = team; group < directions() * split.row_parts; group += split.teams) {
            members_ = split.unit_parts;
            use_direction(group / split.row_parts);
            rows_ = part_of(batch_, group % split.row_parts, split.row_parts);
            mine_ = part_of(vectors_, own_, members_);
            body();
            // Who has left goes no further either: the first does their part of the other groups as well.
            if (members_ == 0 || (members_ == 1 && own_ != 0)) return;
            if (members_ == 1 && split.unit_parts > 1) {
                finish_alone(group + split.teams, split, body);
                return;
            }
        }
    }

    // Meets the other members; false where this one is to go no further.
    bool meet() {
        if (members_ == 1) return !member_.stopped();
        members_ = member_.meet(meeting_, own_, members_, true);
        mine_ = part_of(vectors_, own_, std::max(members_, 1U));
        return members_ > own_;
    }

    [[nodiscard]] std::int64_t directions() const { return work_.directions; }

    // sums[i][v] += operand[i] panels[v], in blocks of k. `one_row`: see multiply_rows.
    HWY_INLINE void multiply(const T* const* operand, std::int64_t count, const T* panels, std::int64_t panel,
                             std::int64_t depth, std::int64_t vectors, T* sums, std::int64_t sums_row,
                             bool one_row) const {
        const std::int64_t blocks = (depth + kDepth<T> + kDepth<T> / 2 - 1) / (kDepth<T> + kDepth<T> / 2);
        for (std::int64_t block = 0; block < blocks; ++block) {
            const Range k = part_of(depth, block, blocks);
            const T* rows[kChunkRows];
            for (std::int64_t i = 0; i < count; ++i) rows[i] = operand[i] + k.begin;
            multiply_rows<T>(rows, count, k.end - k.begin, panels + k.begin * L, panel, vectors, one_row, sums,
                             sums_row);
        }
    }

    const LoopWork& work_;
    C cell_;
    Member& member_;
    const std::int64_t steps_, batch_, units_, vectors_;
    const bool has_mask_, has_lengths_, keep_, reset_after_, two_phases_;
    std::int64_t slot_[kGates];
    std::int64_t direction_ = 0;
    View<T> views_[abi::kViews];
    const T *weights_ = nullptr, *input_weights_ = nullptr;
    Range rows_{0, 0}, mine_{0, 0};

private:
    template <class Body>
    void finish_alone(std::int64_t group, const Split& split, const Body& body) {
        for (; group < directions() * split.row_parts; group += split.teams) {
            use_direction(group / split.row_parts);
            rows_ = part_of(batch_, group % split.row_parts, split.row_parts);
            mine_ = {0, vectors_};
            body();
            if (member_.stopped()) return;
        }
    }

    unsigned own_ = 0, members_ = 1, meeting_ = 0;
};

template <class C, class T>
class Forward : Loop<C, T> {
    using Base = Loop<C, T>;
    using typename Base::Real;
    using Base::cell_, Base::has_mask_, Base::keep_, Base::kGates, Base::kStates, Base::kVectors, Base::L, Base::member_,
        Base::mine_, Base::previous, Base::row, Base::rows_, Base::slot_, Base::steps_, Base::two_phases_, Base::units_,
        Base::views_, Base::work_;

public:
    using Base::Base;

    void run() {
        this->run_groups(shape(work_), [&] { run_group(); });
    }
    static LoopShape shape(const LoopWork& work) { return Base::shape_of(work, kGates, work.params.H + work.features); }

private:
    static constexpr int kFirstGates = C::kFirstGates;  // 0 where a cell has one phase

    void run_group() {
        projected_ = {0, 0};
        for (std::int64_t k = 0; k < steps_; ++k) {
            project_ahead(k);
            if (two_phases_) {
                if constexpr (kFirstGates != 0) {
                    phase<0, kFirstGates, 1>(k);
                    if (!this->meet()) return;
                    phase<kFirstGates, kGates, 2>(k);
                }
            } else {
                phase<0, kGates, 0>(k);
            }
            if (!this->meet()) return;
        }
    }

    // From so many batch rows on a step forms x W^T for itself, in the same tiles; below, for several steps at once, as
    // each weight that is loaded should serve many rows.
    static constexpr std::int64_t kManyRows = 24, kAheadRows = 48;

    [[nodiscard]] bool projects_ahead() const { return work_.features != 0 && rows_.end - rows_.begin < kManyRows; }

    // x W^T of the member's units for step k and some after it, unless it is there.
    void project_ahead(std::int64_t k) {
        if (!projects_ahead() || (k < projected_.end && projected_for_.begin == mine_.begin && projected_for_.end == mine_.end))
            return;
        const std::int64_t rows = rows_.end - rows_.begin, width = (mine_.end - mine_.begin) * L;
        projected_ = {k, std::min(steps_, k + kAheadRows / rows)};
        projected_for_ = mine_;
        ahead_ = static_cast<T*>(
            member_.scratch(2, sizeof(T) * static_cast<std::size_t>(kAheadRows * kGates * width)));
        const T* features[kAheadRows];
        std::int64_t count = 0;
        for (std::int64_t step = projected_.begin; step < projected_.end; ++step)
            for (std::int64_t n = rows_.begin; n < rows_.end; ++n) features[count++] = row(abi::kProjected, step, n);
        std::memset(ahead_, 0, sizeof(T) * static_cast<std::size_t>(count * kGates * width));
        project(features, count, 0, kGates, mine_, ahead_, kGates * width);
    }

    // sums[row][g - first] += x W^T for gates [first, end).
    void project(const T* const* features, std::int64_t count, int first, int end, Range vectors, T* sums,
                 std::int64_t sums_row) const {
        const std::int64_t panel = work_.features * L, width = (vectors.end - vectors.begin) * L;
        for (int g = first; g < end; ++g)
            this->multiply(features, count,
                           this->input_weights_ + (slot_[g] * this->vectors_ + vectors.begin) * panel, panel,
                           work_.features, vectors.end - vectors.begin, sums + (g - first) * width, sums_row, false);
    }

    // The rows that a product multiplies.
    const T* operand(std::int64_t k, std::int64_t n, int phase) const {
        if (phase == 2) return row(abi::kOperand, k, n);
        if (has_mask_) return masked_ + (n - rows_.begin) * this->vectors_ * L;
        return previous(abi::kHidden, abi::kInitHidden, k, n);
    }

    void prepare_operand(std::int64_t k) {
        masked_ = static_cast<T*>(member_.scratch(
            1, sizeof(T) * static_cast<std::size_t>((rows_.end - rows_.begin) * this->vectors_ * L)));
        for (std::int64_t n = rows_.begin; n < rows_.end; ++n) {
            const T* hidden = previous(abi::kHidden, abi::kInitHidden, k, n);
            T* out = masked_ + (n - rows_.begin) * this->vectors_ * L;
            for (std::int64_t j = 0; j < units_; j += L) {
                const std::int64_t count = std::min(L, units_ - j);
                store(load(hidden + j, count) * this->mask(k, n, j, count), out + j, count);
            }
        }
    }

    template <int First, int End, int Phase>
    void phase(std::int64_t k) {
        constexpr std::int64_t kCount = End - First;
        const bool multiplies = k > 0 || work_.has_initial != 0, ahead = projects_ahead();
        if (multiplies && has_mask_ && Phase != 2) prepare_operand(k);
        const std::int64_t chunks = (rows_.end - rows_.begin + kChunkRows - 1) / kChunkRows;
        const std::int64_t height = (rows_.end - rows_.begin + chunks - 1) / chunks;
        const std::int64_t widest = widest_tile(height);
        const std::int64_t stripes = (mine_.end - mine_.begin + widest - 1) / widest;
        const std::int64_t most = height * kCount * widest * L;
        T* const sums = static_cast<T*>(member_.scratch(0, 2 * sizeof(T) * static_cast<std::size_t>(most)));
        const T* operands[kChunkRows];
        const std::int64_t panel = units_ * L;
        for (std::int64_t stripe = 0; stripe < stripes; ++stripe) {
            const Range part = part_of(mine_.end - mine_.begin, stripe, stripes);
            const Range vectors{mine_.begin + part.begin, mine_.begin + part.end};
            const std::int64_t width = (vectors.end - vectors.begin) * L, sums_row = kCount * width;
            for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
                if (member_.stopped()) return;
                const Range rows = part_of(rows_.end - rows_.begin, chunk, chunks);
                const std::int64_t top = rows_.begin + rows.begin, count = rows.end - rows.begin;
                const bool fused = work_.features != 0 && !ahead;
                T* const projected = sums + count * sums_row;
                std::memset(sums, 0, sizeof(T) * static_cast<std::size_t>(count * sums_row * (fused ? 2 : 1)));
                if (fused) {
                    for (std::int64_t i = 0; i < count; ++i) operands[i] = row(abi::kProjected, k, top + i);
                    project(operands, count, First, End, vectors, projected, sums_row);
                }
                if (multiplies) {
                    for (std::int64_t i = 0; i < count; ++i) operands[i] = operand(k, top + i, Phase);
                    for (int g = First; g < End; ++g)
                        this->multiply(operands, count,
                                       this->weights_ + (slot_[g] * this->vectors_ + vectors.begin) * panel, panel,
                                       units_, vectors.end - vectors.begin, sums + (g - First) * width, sums_row,
                                       this->batch_ == 1);
                }
                for (std::int64_t i = 0; i < count; ++i) {
                    const std::int64_t n = top + i;
                    const T* x[kGates];
                    for (int g = First; g < End; ++g) {
                        if (fused) {
                            x[g] = projected + i * sums_row + (g - First) * width;
                        } else if (ahead) {
                            const std::int64_t all = (mine_.end - mine_.begin) * L;
                            const std::int64_t at = (k - projected_.begin) * (rows_.end - rows_.begin) + n - rows_.begin;
                            x[g] = ahead_ + (at * kGates + g) * all + part.begin * L;
                        } else {
                            x[g] = row(abi::kProjected, k, n) + slot_[g] * views_[abi::kProjected].slot +
                                   vectors.begin * L;
                        }
                    }
                    step<First, End, Phase>(k, n, vectors, x, sums + i * sums_row, width);
                }
            }
        }
    }

    // The cell for some units of a batch row. x: by gate, for the first of the units. The sums of each gate are `width`
    // elements apart.
    template <int First, int End, int Phase>
    HWY_INLINE void step(std::int64_t k, std::int64_t n, Range vectors, const T* const* x_at, const T* sums,
                         std::int64_t width) {
        if (this->has_ended(n, k)) return clear_results(k, n, this->units_of(vectors), Phase);
        const T* const bias = row(abi::kBias, 0, 0);
        const T* const learned = row(abi::kVectors, 0, 0);
        const T* const hidden_before = previous(abi::kHidden, abi::kInitHidden, k, n);
        T* const hidden = row(abi::kHidden, k, n);
        T* const saved = row(abi::kSaved, k, n);
        const T* cell_before = nullptr;
        T* cell_state = nullptr;
        if constexpr (kStates > 1) {
            cell_before = previous(abi::kCell, abi::kInitCell, k, n);
            cell_state = row(abi::kCell, k, n);
        }
        const bool keeps = keep_ || Phase == 1;
        const Stride b_slot = views_[abi::kBias].slot;
        const Stride v_slot = views_[abi::kVectors].slot, s_slot = views_[abi::kSaved].slot;
        for (std::int64_t v = vectors.begin; v < vectors.end; ++v) {
            const std::int64_t j = v * L, count = std::min(L, units_ - j);
            Real x[kGates], r[kGates], learn[kGates], kept[kGates], before[kStates], after[kStates];
            for (int g = First; g < End; ++g) {
                x[g] = load(x_at[g] + (v - vectors.begin) * L, count);
                if (work_.adds_bias != 0) x[g] += load(bias + slot_[g] * b_slot + j, count);
                r[g] = Real(hn::LoadU(Tag<T>(), sums + (g - First) * width + (v - vectors.begin) * L));
            }
            // A vector per gate stands in the gates' order; a single one is its own slot 0.
            for (int i = 0; i < kVectors; ++i)
                learn[i] = load(learned + (kVectors > 1 ? slot_[i] : 0) * v_slot + j, count);
            before[0] = load(hidden_before + j, count);
            if constexpr (kStates > 1) before[1] = load(cell_before + j, count);

            if constexpr (Phase == 1) {
                Real factor[1];
                cell_.cell_forward_first(x, r, kept, factor);
                store(before[0] * this->mask(k, n, j, count) * factor[0], row(abi::kOperand, k, n) + j, count);
            } else {
                if constexpr (Phase == 2) {
                    for (int g = 0; g < First; ++g) kept[g] = load(saved + slot_[g] * s_slot + j, count);
                    cell_.cell_forward_second(x, r, before, after, kept);
                } else {
                    cell_.cell_forward(x, r, learn, before, after, kept);
                }
                store(after[0], hidden + j, count);
                if constexpr (kStates > 1) store(after[1], cell_state + j, count);
            }
            if (keeps)
                for (int g = First; g < End; ++g) store(kept[g], saved + slot_[g] * s_slot + j, count);
        }
    }

    void clear_results(std::int64_t k, std::int64_t n, Range units, int phase) {
        if (phase == 1) return;
        this->clear(abi::kHidden, k, n, 1, units);
        if (kStates > 1) this->clear(abi::kCell, k, n, 1, units);
        if (keep_) this->clear(abi::kSaved, k, n, kGates, units);
    }

    T* masked_ = nullptr;
    // x W^T formed ahead: of those steps, for those units.
    Range projected_{0, 0}, projected_for_{0, 0};
    T* ahead_ = nullptr;
};

// What each step's recurrent product multiplied, h[k-1] * m[k], from what the forward pass kept, for the weight
// gradients; with peephole weights c[k-1] too. Steps and rows in any order.
template <class C, class T>
class Replay : Loop<C, T> {
    using Base = Loop<C, T>;
    using typename Base::Real;
    using Base::batch_, Base::cell_, Base::keep_, Base::kGates, Base::kStates, Base::L, Base::member_, Base::previous,
        Base::row, Base::slot_, Base::steps_, Base::two_phases_, Base::units_, Base::views_;

public:
    using Base::Base;

    void run() {
        const Range mine = part_of(this->directions() * steps_ * batch_, member_.rank(), member_.size());
        for (std::int64_t i = mine.begin; i < mine.end; ++i) {
            if (i == mine.begin || i % (steps_ * batch_) == 0) this->use_direction(i / (steps_ * batch_));
            if (member_.stopped()) return;
            replay(i % (steps_ * batch_) / batch_, i % batch_);
        }
    }
    // As for a loop that multiplies by nothing, whose rows and steps are alike.
    static LoopShape shape(const LoopWork& work) {
        LoopShape shape = Base::shape_of(work, kGates, 1);
        shape.rows *= shape.steps;
        shape.steps = 1;
        return shape;
    }

private:
    void replay(std::int64_t k, std::int64_t n) {
        const bool keeps_cell = kStates > 1 && keep_;
        if (this->has_ended(n, k)) {
            this->clear(abi::kOperand, k, n, 1, {0, units_});
            if (two_phases_) this->clear(abi::kResetOperand, k, n, 1, {0, units_});
            if (keeps_cell) this->clear(abi::kPreviousCell, k, n, 1, {0, units_});
            return;
        }
        T* const operand = row(abi::kOperand, k, n);
        if (keeps_cell)
            std::memcpy(row(abi::kPreviousCell, k, n), previous(abi::kCell, abi::kInitCell, k, n),
                        static_cast<std::size_t>(units_) * sizeof(T));
        for (std::int64_t j = 0; j < units_; j += L) {
            const std::int64_t count = std::min(L, units_ - j);
            const Real value = hidden(k, n, j, count) * this->mask(k, n, j, count);
            store(value, operand + j, count);
            if constexpr (C::kFirstGates != 0) {
                if (two_phases_) {
                    const T* const reset = row(abi::kSaved, k, n) + slot_[C::kReset] * views_[abi::kSaved].slot;
                    store(value * load(reset + j, count), row(abi::kResetOperand, k, n) + j, count);
                }
            }
        }
    }

    Real hidden(std::int64_t k, std::int64_t n, std::int64_t j, std::int64_t count) {
        if constexpr (C::kKeepsHidden) {
            return load(previous(abi::kHidden, abi::kInitHidden, k, n) + j, count);
        } else {
            if (k == 0) return load(row(abi::kInitHidden, 0, n) + j, count);
            Real kept[kGates], after[kStates];
            const T* const saved = row(abi::kSaved, k - 1, n);
            for (int g = 0; g < kGates; ++g) kept[g] = load(saved + slot_[g] * views_[abi::kSaved].slot + j, count);
            if constexpr (kStates > 1) after[1] = load(row(abi::kCell, k - 1, n) + j, count);
            return cell_.cell_hidden(kept, after);
        }
    }
};

template <class C, class T>
class Backward : Loop<C, T> {
    using Base = Loop<C, T>;
    using typename Base::Real;
    using Base::cell_, Base::kGates, Base::kStates, Base::kVectors, Base::L, Base::member_, Base::mine_, Base::previous,
        Base::reset_after_, Base::row, Base::rows_, Base::slot_, Base::steps_, Base::two_phases_, Base::units_,
        Base::views_, Base::work_;

public:
    using Base::Base;

    void run() {
        this->run_groups(shape(work_), [&] { run_group(); });
    }
    static LoopShape shape(const LoopWork& work) { return Base::shape_of(work, 1, kGates * std::int64_t{work.params.H}); }

private:
    // The slot of the gate whose product the reset gate enters, the last in either order.
    static constexpr std::int64_t kCandidateSlot = kGates - 1;

    void run_group() {
        for (std::int64_t k = steps_ - 1; k >= 0; --k) {
            // The first phase of two hands down the gates that stand in the first slots.
            phase<1>(k, k + 1, 0, two_phases_ ? kCandidateSlot : kGates, k + 1 < steps_);
            if (!this->meet()) return;
            if constexpr (C::kFirstGates != 0) {
                if (!two_phases_) continue;
                phase<2>(k, k, kCandidateSlot, kGates, true);
                if (!this->meet()) return;
            }
        }
        // What step 0 hands down is the gradient of the initial state.
        if (work_.has_initial != 0) phase<1>(-1, 0, 0, two_phases_ ? kCandidateSlot : kGates, true);
    }

    // Multiplies the deltas of step `of`, slots [first, end), with the weights, for the cell at step k.
    template <int Phase>
    void phase(std::int64_t k, std::int64_t of, std::int64_t first, std::int64_t end, bool multiplies) {
        const std::int64_t chunks = (rows_.end - rows_.begin + kChunkRows - 1) / kChunkRows;
        const std::int64_t height = (rows_.end - rows_.begin + chunks - 1) / chunks;
        const std::int64_t widest = widest_tile(height);
        const std::int64_t stripes = (mine_.end - mine_.begin + widest - 1) / widest;
        T* const sums =
            static_cast<T*>(member_.scratch(0, sizeof(T) * static_cast<std::size_t>(height * widest * L)));
        const T* operands[kChunkRows];
        const std::int64_t panel = kGates * units_ * L, depth = (end - first) * units_;
        for (std::int64_t stripe = 0; stripe < stripes; ++stripe) {
            const Range part = part_of(mine_.end - mine_.begin, stripe, stripes);
            const Range vectors{mine_.begin + part.begin, mine_.begin + part.end};
            const std::int64_t width = (vectors.end - vectors.begin) * L;
            for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
                if (member_.stopped()) return;
                const Range rows = part_of(rows_.end - rows_.begin, chunk, chunks);
                const std::int64_t top = rows_.begin + rows.begin, count = rows.end - rows.begin;
                std::memset(sums, 0, sizeof(T) * static_cast<std::size_t>(count * width));
                if (multiplies) {
                    for (std::int64_t i = 0; i < count; ++i)
                        operands[i] = row(abi::kRecurrentDelta, of, top + i) + first * units_;
                    this->multiply(operands, count, this->weights_ + vectors.begin * panel + first * units_ * L, panel,
                                   depth, vectors.end - vectors.begin, sums, width, this->batch_ == 1);
                }
                for (std::int64_t i = 0; i < count; ++i) {
                    if constexpr (Phase == 2) {
                        second(k, top + i, vectors, sums + i * width);
                    } else {
                        step(k, top + i, vectors, sums + i * width);
                    }
                }
            }
        }
    }

    HWY_INLINE void step(std::int64_t k, std::int64_t n, Range vectors, const T* sums) {
        if (this->has_ended(n, k)) {
            this->clear(abi::kDelta, k, n, kGates, this->units_of(vectors));
            if (reset_after_) this->clear(abi::kRecurrentDelta, k, n, kGates, this->units_of(vectors));
            return;
        }
        const bool last = k == this->length_of(n) - 1;
        T* const carry_hidden = row(abi::kCarryHidden, 0, n);
        const T* const handed_down = last ? row(abi::kLastHidden, 0, n) : carry_hidden;
        if (k < 0) {
            for (std::int64_t v = vectors.begin; v < vectors.end; ++v) {
                const std::int64_t j = v * L, count = std::min(L, units_ - j);
                const Real through(hn::LoadU(Tag<T>(), sums + (v - vectors.begin) * L));
                store(load(carry_hidden + j, count) + through * this->mask(0, n, j, count), carry_hidden + j, count);
            }
            return;
        }
        const T* const upstream = row(abi::kUpstream, k, n);
        const T* const saved = row(abi::kSaved, k, n);
        const T* const learned = row(abi::kVectors, 0, 0);
        T* const delta = row(abi::kDelta, k, n);
        T* const recurrent = row(abi::kRecurrentDelta, k, n);
        const T *hidden_before = nullptr, *candidate = nullptr, *cell_before = nullptr, *cell_after = nullptr;
        const T* cell_down = nullptr;
        T* carry_cell = nullptr;
        if constexpr (C::kKeepsHidden) hidden_before = previous(abi::kHidden, abi::kInitHidden, k, n);
        if constexpr (C::kHasCandidate) candidate = row(abi::kProduct, k, n);
        if constexpr (kStates > 1) {
            cell_before = previous(abi::kCell, abi::kInitCell, k, n);
            cell_after = row(abi::kCell, k, n);
            carry_cell = row(abi::kCarryCell, 0, n);
            cell_down = last ? row(abi::kLastCell, 0, n) : carry_cell;
        }
        const Stride s_slot = views_[abi::kSaved].slot, v_slot = views_[abi::kVectors].slot;
        const Stride d_slot = views_[abi::kDelta].slot, r_slot = views_[abi::kRecurrentDelta].slot;
        for (std::int64_t v = vectors.begin; v < vectors.end; ++v) {
            const std::int64_t j = v * L, count = std::min(L, units_ - j);
            Real kept[kGates], learn[kGates], before[kStates], after[kStates], up[kStates];
            up[0] = load(handed_down + j, count);
            if (!last) {
                const Real through(hn::LoadU(Tag<T>(), sums + (v - vectors.begin) * L));
                up[0] += through * this->mask(k + 1, n, j, count);
            }
            up[0] += load(upstream + j, count);
            for (int g = 0; g < kGates; ++g) kept[g] = load(saved + slot_[g] * s_slot + j, count);
            for (int i = 0; i < kVectors; ++i)
                learn[i] = load(learned + (kVectors > 1 ? slot_[i] : 0) * v_slot + j, count);
            before[0] = after[0] = 0.0;
            Real q = 0.0;
            if constexpr (C::kKeepsHidden) before[0] = load(hidden_before + j, count);
            if constexpr (C::kHasCandidate)
                if (reset_after_) q = load(candidate + j, count);
            if constexpr (kStates > 1) {
                up[1] = load(cell_down + j, count);
                before[1] = load(cell_before + j, count);
                after[1] = load(cell_after + j, count);
            }
            Real dx[kGates], dr[kGates], carry[kStates];
            cell_.cell_backward(kept, learn, before, after, q, up, dx, dr, carry);
            for (int g = 0; g < kGates; ++g) store(dx[g], delta + slot_[g] * d_slot + j, count);
            if constexpr (C::kHasCandidate)
                if (reset_after_)
                    for (int g = 0; g < kGates; ++g) store(dr[g], recurrent + slot_[g] * r_slot + j, count);
            store(carry[0], carry_hidden + j, count);
            if constexpr (kStates > 1) store(carry[1], carry_cell + j, count);
        }
    }

    // Second phase: what comes through the reset gate.
    HWY_INLINE void second(std::int64_t k, std::int64_t n, Range vectors, const T* sums) {
        if constexpr (C::kFirstGates != 0) {
            if (this->has_ended(n, k)) return;
            const T* const saved = row(abi::kSaved, k, n);
            const T* const operand = row(abi::kOperand, k, n);
            T* const delta = row(abi::kDelta, k, n) + slot_[C::kReset] * views_[abi::kDelta].slot;
            T* const carry_hidden = row(abi::kCarryHidden, 0, n);
            for (std::int64_t v = vectors.begin; v < vectors.end; ++v) {
                const std::int64_t j = v * L, count = std::min(L, units_ - j);
                Real kept[kGates], carry[kStates], dx_reset[1];
                for (int g = 0; g < kGates; ++g)
                    kept[g] = load(saved + slot_[g] * views_[abi::kSaved].slot + j, count);
                carry[0] = load(carry_hidden + j, count);
                const Real through(hn::LoadU(Tag<T>(), sums + (v - vectors.begin) * L));
                cell_.cell_backward_second(kept, through, load(operand + j, count), this->mask(k, n, j, count),
                                           dx_reset, carry);
                store(dx_reset[0], delta + j, count);
                store(carry[0], carry_hidden + j, count);
            }
        }
    }
};

template <class L>
void run_loop(const std::byte* work, const std::uint32_t* constants, Member& member) {
    L(*reinterpret_cast<const LoopWork*>(work), constants, member).run();
}

template <class L>
unsigned loop_threads(const std::byte* work, const std::uint32_t* /*constants*/, unsigned most) {
    return choose_split(L::shape(*reinterpret_cast<const LoopWork*>(work)), most, contended()).threads();
}

}  // namespace vkrnn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
