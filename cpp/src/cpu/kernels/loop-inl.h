// The common part of a cell's time loops. Compiled for each instruction set.
//
// Threads form teams. A team runs all steps for one group after another: some batch rows of one block of units (see
// LoopWork). Its members share the units, and wait at a barrier in every step (see split.h), unless there are no
// recurrent products.
#pragma once

#include <algorithm>
#include <cstring>

#include "heads-inl.h"
#include "product-inl.h"
#include "units-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vkrnn::cpu::HWY_NAMESPACE {

// Batch rows whose sums are computed, and then passed to the cell, together. The weights are loaded once for all of
// them.
inline constexpr std::int64_t kChunkRows = 96;

// Limits on the size of a stripe. kSumBytes of sums stay in the nearest caches, although not all of them beside the
// weights in the L1 cache. kWeightBytes of weights are a part of the L2 cache.
inline constexpr std::int64_t kSumBytes = 24 << 10, kWeightBytes = 384 << 10;

// Divides a range of vectors of units into stripes. The sums of a stripe are computed, and then passed to the cell,
// together. A stripe is at least as wide as a tile; beyond that, it is as wide as its sums and weights allow, because
// the cell has a fixed cost for each stripe. Every other step takes the stripes in reverse (`back`). If the weights do
// not fit into the caches, a step then begins with those that are still there.
class Stripes {
public:
    Stripes(Range vectors, std::int64_t tile, std::int64_t sum_bytes, std::int64_t weight_bytes, bool back)
        : vectors_(vectors), back_(back) {
        // Cells compute two vectors at a time, so tiles of odd width go in pairs, if there is room.
        const std::int64_t room = std::min(kSumBytes / sum_bytes, kWeightBytes / weight_bytes), pair = 2 * tile;
        const bool in_pairs = tile % 2 != 0 && room >= pair;
        const std::int64_t most = in_pairs ? room / pair * pair : std::max(tile, room / 2 * 2);
        together_ = in_pairs ? pair : most % 2 == 0 ? 2 : 1;
        groups_ = (vectors.end - vectors.begin + together_ - 1) / together_;
        count_ = (groups_ * together_ + most - 1) / most;
    }

    [[nodiscard]] std::int64_t count() const { return count_; }
    [[nodiscard]] std::int64_t widest() const { return count_ == 0 ? 0 : (groups_ + count_ - 1) / count_ * together_; }
    [[nodiscard]] Range at(std::int64_t number) const {
        const std::int64_t stripe = back_ ? count_ - 1 - number : number;
        const Range groups = part_of(groups_, stripe, count_);
        return {vectors_.begin + groups.begin * together_,
                std::min(vectors_.end, vectors_.begin + groups.end * together_)};
    }

private:
    Range vectors_;
    bool back_;
    std::int64_t together_, groups_, count_;
};

// A tensor's address and strides in one direction: see step_abi.h.
template <class T>
struct View {
    T* at;
    Stride step, row, slot, unit;
    bool packed;  // see live_rows.h; the sign of `step` is the direction

    HWY_INLINE Lanes<T> read(const T* row_at, std::int64_t slot_number, std::int64_t j, std::int64_t count) const {
        const T* p = row_at + slot_number * slot;
        if (unit == 0) return static_cast<double>(*p);
        return load(p + j, count);
    }
};

// The weight of a block of units as panels. If `panels` is null, `rows` has it in the caller's layout: rows of `depth`
// elements, [slot, unit].
template <class T>
struct Weights {
    const T *panels = nullptr, *rows = nullptr;
    Heads heads{};  // by which units read an operand
};

// The base of the time loops: a call's tensors in one direction, and where their elements are.
template <class C, class T>
class Loop {
public:
    static constexpr std::int64_t L = kLanes<T>;
    static constexpr std::int64_t W = Lanes<T>::kCount;  // units that a cell computes at a time
    static constexpr int kGates = C::kGates, kStates = C::kStates, kVectors = C::kVectors;
    // h and the first cell state have starts of resets. The other states start from 0.
    static constexpr int kStarts = kStates > 1 ? 2 : 1;
    using Real = Lanes<T>;

    Loop(const LoopWork& work, const std::uint32_t* constants, Member& member)
        : work_(work),
          cell_{constants},
          member_(member),
          steps_(work.params.T),
          batch_(work.params.N),
          units_(work.block_units),
          vectors_((units_ + L - 1) / L),
          has_mask_(constants[abi::kHasMask] != 0),
          masks_gates_(constants[abi::kHasMask] == 2),
          has_reset_(constants[abi::kHasReset] != 0),
          has_lengths_(work.has_lengths != 0),
          has_upstream_cell_(constants[abi::kHasUpstreamCell] != 0),
          has_gradient_clip_(constants[abi::kHasGradientClip] != 0),
          gradient_clip_(cell_.number(abi::kGradientClip)),
          scales_product_(constants[abi::kScalesProduct] != 0),
          two_phases_(work.two_phases != 0),
          recurs_(work.recurs != 0),
          keeps_reset_up_(constants[abi::kKeepsResetUp] != 0),
          blends_hidden_(constants[abi::kBlendsHidden] != 0),
          blends_cell_(constants[abi::kBlendsCell] != 0),
          keeps_blend_up_(constants[abi::kKeepsBlendUp] != 0),
          keep_(constants[abi::kKeep]),
          live_{pointer<const std::int64_t>(work.live), steps_, batch_} {
        for (int g = 0; g < kGates; ++g) slot_[g] = constants[abi::kGateOrder] >> (4 * g) & 15U;
    }

protected:
    static LoopShape shape_of(const LoopWork& work, std::int64_t products, std::int64_t depth) {
        return {work.params.T - work.steps_before - work.steps_after,
                mean_rows(work),
                work.directions * work.blocks,
                (work.block_units + L - 1) / L,
                products,
                depth,
                L,
                sizeof(T),
                work.recurs == 0       ? 0
                : work.two_phases != 0 ? 2
                                       : 1};
    }

    // Selects a block of units. Blocks are numbered direction by direction.
    void use_block(std::int64_t number) {
        const std::int64_t direction = number / work_.blocks, block = number % work_.blocks, first = block * units_;
        direction_ = direction;
        const Heads input_heads(work_.input_head_units, first, units_);
        std::int64_t source = first;  // where the block's part of the source begins
        if (work_.features != 0) source = input_heads.several ? 0 : input_heads.of(0) * work_.features;
        for (abi::uint v = 0; v < abi::kViews; ++v) {
            const abi::Strides& strides = work_.params.strides[v];
            views_[v] = {pointer<T>(work_.params.at[2 * v + static_cast<std::size_t>(direction)]) +
                             (v == abi::kProjected ? source : first) * strides.unit,
                         strides.step[direction],
                         strides.row,
                         strides.slot,
                         strides.unit,
                         (work_.packed_views >> v & 1U) != 0};
        }
        const auto panels = [&](Address weights, std::int64_t depth) {
            const T* const of_direction = pointer<const T>(weights);
            return of_direction == nullptr ? nullptr : of_direction + block * kGates * vectors_ * L * depth;
        };
        weights_ = {panels(work_.params.weights[direction], work_.head_units),
                    pointer<const T>(work_.weight_rows[direction]), Heads(work_.head_units, 0, units_)};
        input_weights_ = {panels(work_.input_weights[direction], work_.features),
                          pointer<const T>(work_.input_weight_rows[direction]), input_heads};
    }

    // Returns the length of a batch row. `n` is its position (see live_rows.h); without lengths, that is its number.
    [[nodiscard]] std::int64_t length_of(std::int64_t n) const { return has_lengths_ ? live_.lengths()[n] : steps_; }

    // Returns the position of row i of this member's group. With lengths, the positions of a group are spread over the
    // batch, so that each group has long and short rows.
    [[nodiscard]] std::int64_t position(std::int64_t i) const { return first_ + i * apart_; }
    // Returns how many rows of the group are live at step k. They come first.
    [[nodiscard]] std::int64_t live_rows(std::int64_t k) const { return has_lengths_ ? among(live_.live(k)) : count_; }
    // Returns the number of steps of the group's longest row.
    [[nodiscard]] std::int64_t group_steps() const { return length_of(first_); }
    // Returns which of these steps belong to the piece.
    [[nodiscard]] Range piece_steps() const {
        return {work_.steps_before, std::min(group_steps(), steps_ - work_.steps_after)};
    }
    // Returns whether a single row of the whole batch is live at step k: see multiply_rows.
    [[nodiscard]] bool one_row(std::int64_t k) const { return has_lengths_ ? live_.live(k) == 1 : batch_ == 1; }

    // Returns the address of slot 0, unit 0 of a tensor, for a step and a batch row that is live in it.
    HWY_INLINE T* row(abi::uint view, std::int64_t k, std::int64_t n) const {
        const View<T>& v = views_[view];
        if (HWY_LIKELY(!has_lengths_)) return v.at + k * v.step + n * v.row;
        const std::int64_t end = live_.lengths()[n];
        if (v.packed) return v.at + (live_.firsts()[v.step < 0 ? end - 1 - k : k] + n) * v.row;
        return v.at + (v.step < 0 ? k + steps_ - end : k) * v.step + live_.order()[n] * v.row;
    }
    // Clears the member's units of a sequence from the end of each batch row of the group. Packed sequences have no
    // such rows.
    void clear_ended(abi::uint view, std::int64_t slots) const {
        const View<T>& v = views_[view];
        if (!has_lengths_ || v.packed || v.step == 0) return;
        T* const first = v.at + (v.step < 0 ? (steps_ - 1) * v.step : 0);  // the beginning of the time axis
        const Stride time = v.step < 0 ? -v.step : v.step;
        const Range units = units_of(mine_);
        for (std::int64_t i = 0; i < count_; ++i) {
            if (member_.stopped()) return;
            const std::int64_t n = position(i);
            for (std::int64_t t = length_of(n); t < steps_; ++t)
                for (std::int64_t slot = 0; slot < slots; ++slot)
                    std::memset(first + t * time + live_.order()[n] * v.row + slot * v.slot + units.begin, 0,
                                static_cast<std::size_t>(units.end - units.begin) * sizeof(T));
        }
    }
    // Returns the address of the state before step k.
    HWY_INLINE T* previous(abi::uint sequence, abi::uint initial, std::int64_t k, std::int64_t n) const {
        return k == 0 ? row(initial, 0, n) : row(sequence, k - 1, n);
    }
    // Returns the stride between the slots of that state.
    [[nodiscard]] HWY_INLINE Stride previous_slot(abi::uint sequence, abi::uint initial, std::int64_t k) const {
        return views_[k == 0 ? initial : sequence].slot;
    }
    // Returns the mask of a slot's product, which is the same for all slots unless masks_gates_.
    HWY_INLINE Real mask(std::int64_t k, std::int64_t n, std::int64_t slot, std::int64_t j, std::int64_t count) const {
        return has_mask_ ? views_[abi::kMask].read(row(abi::kMask, k, n), slot, j, count) : Real(1.0);
    }
    // Returns whether step k of a row resets any of its states. Row t of the reset belongs between rows t - 1 and t of
    // the sequence: the backward direction's step k takes it from its row of step k - 1, and step 0 takes none.
    [[nodiscard]] HWY_INLINE bool resets(std::int64_t k, std::int64_t n) const {
        if (HWY_LIKELY(!has_reset_) || k < direction_) return false;
        return views_[abi::kReset].unit != 0 || *row(abi::kReset, k - direction_, n) != T{1};
    }
    HWY_INLINE Real factor(std::int64_t k, std::int64_t n, std::int64_t j, std::int64_t count) const {
        return views_[abi::kReset].read(row(abi::kReset, k - direction_, n), 0, j, count);
    }
    // Returns the factor of state s. That of a stabilizer is 1, but 0 where the others' is 0.
    HWY_INLINE Real factor(int s, std::int64_t k, std::int64_t n, std::int64_t j, std::int64_t count) const {
        const Real of_others = factor(k, n, j, count);
        if (s != C::kStabilizer) return of_others;
        return Real(1.0) - step(Real(0.0), of_others) * step(of_others, Real(0.0));
    }
    // Returns state s after the reset of step k.
    HWY_INLINE Real reset(int s, Real state, const T* start, std::int64_t k, std::int64_t n, std::int64_t j,
                          std::int64_t count) const {
        const Real factor = this->factor(s, k, n, j, count);
        if (s >= kStarts) return part(factor, state);
        return part(factor, state) + part(Real(1.0) - factor, load(start + j, count));
    }

    // Returns the new state's parts in step k of a row, if it is blended.
    [[nodiscard]] HWY_INLINE Blend<T> blend(std::int64_t k, std::int64_t n) const {
        return blends_hidden_ ? Blend<T>{row(abi::kBlend, k, n), views_[abi::kBlend].unit} : Blend<T>{};
    }
    [[nodiscard]] HWY_INLINE Blend<T> blend_cell(std::int64_t k, std::int64_t n) const {
        return blends_cell_ ? Blend<T>{row(abi::kBlendCell, k, n), views_[abi::kBlendCell].unit} : Blend<T>{};
    }
    [[nodiscard]] bool blends() const { return blends_hidden_ || blends_cell_; }

    // Returns memory for a row's states after a reset.
    T* room_for_reset() const {
        return static_cast<T*>(member_.scratch(4, sizeof(T) * static_cast<std::size_t>(kStates * units_)));
    }
    // States of a row, with the stride between their slots.
    struct States {
        const T* at;
        Stride slot;
    };
    // Returns the states from which step k begins. If it resets them, these are in `to`, for the given units.
    HWY_INLINE States before(abi::uint sequence, abi::uint initial, abi::uint starts, std::int64_t k, std::int64_t n,
                             int slots, Range units, T* to) const {
        const States found{previous(sequence, initial, k, n), previous_slot(sequence, initial, k)};
        if (HWY_LIKELY(!resets(k, n))) return found;
        const T* const start = row(starts, k - direction_, n);
        for (int slot = 0; slot < slots; ++slot)
            for (std::int64_t j = units.begin; j < units.end; j += W) {
                const std::int64_t count = std::min(W, units.end - j);
                store(reset(slot + (starts == abi::kResetCell ? 1 : 0), load(found.at + slot * found.slot + j, count),
                            start, k, n, j, count),
                      to + slot * units_ + j, count);
            }
        return {to, units_};
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
        barrier_ = 1 + team;
        for (std::int64_t group = team; group < blocks() * split.row_parts; group += split.teams) {
            members_ = split.unit_parts;
            use_group(group, split);
            mine_ = part_of(vectors_, own_, members_);
            body();
            // A member that has left the team takes no further groups. The first member then computes all units of the
            // remaining groups.
            if (members_ == 0 || (members_ == 1 && own_ != 0)) return;
            if (members_ == 1 && split.unit_parts > 1) {
                finish_alone(group + split.teams, split, body);
                return;
            }
        }
    }

    // Waits at the team's barrier, if members need each other's units. Returns false if this member must stop.
    bool wait_at_barrier() {
        if (members_ == 1 || !recurs_) return !member_.stopped();
        members_ = member_.barrier(barrier_, own_, members_, true);
        mine_ = part_of(vectors_, own_, std::max(members_, 1U));
        return members_ > own_;
    }

    // Returns the number of blocks of units of all directions.
    [[nodiscard]] std::int64_t blocks() const { return work_.directions * work_.blocks; }

    // sums[i][v] += operand[i] * panels[v], in blocks along k. `one_row`: see multiply_rows.
    HWY_INLINE void multiply(const T* const* operand, std::int64_t count, const T* panels, std::int64_t panel,
                             std::int64_t depth, std::int64_t vectors, T* sums, std::int64_t sums_row,
                             bool one_row) const {
        const std::int64_t blocks = blocks_of<T>(depth);
        for (std::int64_t block = 0; block < blocks; ++block) {
            const Range k = part_of(depth, block, blocks);
            const T* rows[kChunkRows];
            for (std::int64_t i = 0; i < count; ++i) rows[i] = operand[i] + k.begin;
            multiply_rows<T>(rows, count, k.end - k.begin, panels + k.begin * L, panel, vectors, one_row, sums,
                             sums_row);
        }
    }

    // sums[i][g - first] += operand[i] * B of gate g's slot, for gates [first, end) and a range of vectors of units.
    // The sums of a row's gates are `sums_gate` elements apart.
    HWY_INLINE void multiply_gates(const T* const* operand, std::int64_t count, const Weights<T>& weights,
                                   std::int64_t depth, int first, int end, Range vectors, T* sums,
                                   std::int64_t sums_row, std::int64_t sums_gate, bool one_row) const {
        if (weights.panels == nullptr)
            return multiply_rows_of_gates(operand, count, weights.rows, depth, first, end, vectors, sums, sums_row,
                                          sums_gate, one_row);
        const std::int64_t panel = depth * L, some = vectors.end - vectors.begin;
        if (weights.heads.several)
            return multiply_heads(operand, count, weights, depth, first, end, vectors, sums, sums_row, sums_gate,
                                  one_row);
        // If the tile width does not divide the units, all gates are computed as one product, which needs fewer narrow
        // tiles.
        bool together = some == vectors_ && sums_gate == some * L && some % widest_tile(count) != 0;
        for (int g = first + 1; g < end; ++g) together = together && slot_[g] == slot_[g - 1] + 1;
        if (together)
            return multiply(operand, count, weights.panels + slot_[first] * vectors_ * panel, panel, depth,
                            (end - first) * some, sums, sums_row, one_row);
        for (int g = first; g < end; ++g)
            multiply(operand, count, weights.panels + (slot_[g] * vectors_ + vectors.begin) * panel, panel, depth, some,
                     sums + (g - first) * sums_gate, sums_row, one_row);
    }

    // The same for units of several heads.
    HWY_NOINLINE void multiply_heads(const T* const* operand, std::int64_t count, const Weights<T>& weights,
                                     std::int64_t depth, int first, int end, Range vectors, T* sums,
                                     std::int64_t sums_row, std::int64_t sums_gate, bool one_row) const {
        const T* panels[kGates];
        for (int g = first; g < end; ++g) panels[g] = weights.panels + slot_[g] * vectors_ * depth * L;
        multiply_heads(operand, count, weights.heads, depth, panels + first, end - first, vectors, sums, sums_row,
                       sums_gate, one_row);
    }

    // sums[i][p] += operand[i] * panels[p], for some products of the same operand.
    HWY_NOINLINE void multiply_heads(const T* const* operand, std::int64_t count, const Heads& heads,
                                     std::int64_t depth, const T* const* panels, int products, Range vectors, T* sums,
                                     std::int64_t sums_row, std::int64_t sums_gate, bool one_row) const {
        const std::int64_t panel = depth * L;
        for (std::int64_t v = vectors.begin; v < vectors.end;) {
            const VectorHeads of_vector = heads.of_vector(v, L);
            T* const to = sums + (v - vectors.begin) * L;
            if (of_vector.first != of_vector.last) {
                multiply_across_heads<T>(operand, count, depth, heads, of_vector, v, panels, products, to, sums_row,
                                         sums_gate);
                ++v;
                continue;
            }
            const std::int64_t begin = v;
            while (v < vectors.end && heads.of_vector(v, L).last == of_vector.first) ++v;
            const T* rows[kChunkRows];
            for (std::int64_t i = 0; i < count; ++i) rows[i] = operand[i] + of_vector.first * depth;
            for (int p = 0; p < products; ++p)
                multiply(rows, count, panels[p] + begin * panel, panel, depth, v - begin, to + p * sums_gate, sums_row,
                         one_row);
        }
    }

    // The same with a weight in the caller's layout: packs panels of a few units and uses them at once.
    HWY_NOINLINE void multiply_rows_of_gates(const T* const* operand, std::int64_t count, const T* weight,
                                             std::int64_t depth, int first, int end, Range vectors, T* sums,
                                             std::int64_t sums_row, std::int64_t sums_gate, bool one_row) const {
        constexpr std::int64_t kTogether = 2;
        const std::int64_t panel = depth * L;
        T* const panels = static_cast<T*>(member_.scratch(3, sizeof(T) * static_cast<std::size_t>(kTogether * panel)));
        for (int g = first; g < end; ++g)
            for (std::int64_t v = vectors.begin; v < vectors.end; v += kTogether) {
                const std::int64_t some = std::min(kTogether, vectors.end - v);
                for (std::int64_t u = 0; u < some; ++u) {
                    const std::int64_t j = (v + u) * L;
                    pack_panel(weight + (slot_[g] * units_ + j) * depth, depth, 1, std::min(L, units_ - j), depth,
                               panels + u * panel);
                }
                multiply(operand, count, panels, panel, depth, some,
                         sums + (g - first) * sums_gate + (v - vectors.begin) * L, sums_row, one_row);
            }
    }

    const LoopWork& work_;
    C cell_;
    Member& member_;
    const std::int64_t steps_, batch_;
    const std::int64_t units_, vectors_;  // of a block
    const bool has_mask_, masks_gates_, has_reset_, has_lengths_, has_upstream_cell_, has_gradient_clip_;
    const T gradient_clip_;
    const bool scales_product_, two_phases_, recurs_, keeps_reset_up_, blends_hidden_, blends_cell_, keeps_blend_up_;
    const abi::uint keep_;  // see abi::kKeep
    const LiveRows live_;
    std::int64_t slot_[kGates];
    View<T> views_[abi::kViews];
    Weights<T> weights_, input_weights_;
    Range mine_{0, 0};
    std::int64_t count_ = 0;  // batch rows in the group
    std::int64_t direction_ = 0;

private:
    // Returns the mean number of live batch rows in a step, rounded up; at least 1.
    static std::int64_t mean_rows(const LoopWork& work) {
        const std::int64_t steps = work.params.T, batch = work.params.N;
        if (work.has_lengths == 0) return batch;
        const auto* const lengths = pointer<const std::int32_t>(work.params.lengths);
        std::int64_t sum = 0;
        for (std::int64_t n = 0; n < batch; ++n) sum += lengths[n];
        return std::max<std::int64_t>(1, (sum + steps - 1) / steps);
    }

    void use_group(std::int64_t group, const Split& split) {
        const std::int64_t part = group % split.row_parts;
        use_block(group / split.row_parts);
        const Range rows = part_of(batch_, part, split.row_parts);
        first_ = has_lengths_ ? part : rows.begin;
        apart_ = has_lengths_ ? split.row_parts : 1;
        count_ = has_lengths_ ? among(batch_) : rows.end - rows.begin;
    }
    // Returns how many of the first `rows` positions belong to the group.
    [[nodiscard]] std::int64_t among(std::int64_t rows) const {
        return rows <= first_ ? 0 : (rows - first_ + apart_ - 1) / apart_;
    }

    template <class Body>
    void finish_alone(std::int64_t group, const Split& split, const Body& body) {
        for (; group < blocks() * split.row_parts; group += split.teams) {
            use_group(group, split);
            mine_ = {0, vectors_};
            body();
            if (member_.stopped()) return;
        }
    }

    std::int64_t first_ = 0, apart_ = 1;
    unsigned own_ = 0, members_ = 1, barrier_ = 0;
};

template <class L>
void run_loop(const std::byte* work, const std::uint32_t* constants, Member& member) {
    L(*reinterpret_cast<const LoopWork*>(work), constants, member).run();
}

template <class L>
unsigned loop_threads(const std::byte* work, const std::uint32_t* /*constants*/, unsigned most) {
    return choose_split(L::shape(*reinterpret_cast<const LoopWork*>(work)), most, contended()).threads();
}

template <class L>
double loop_time(const std::byte* work, const std::uint32_t* /*constants*/, unsigned threads) {
    return loop_nanoseconds(L::timed_shape(*reinterpret_cast<const LoopWork*>(work)), threads);
}

}  // namespace vkrnn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
