// What the time loops of a cell have in common. Included once for each instruction set.
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

// Bytes of sums that leave room for the weights in the nearest cache, and of weights that are a small part of what the
// next one holds.
inline constexpr std::int64_t kSumBytes = 8192, kWeightBytes = 256 << 10;

// The parts of a range of vectors of units whose sums are formed, and then handed to the cell, together: at least as
// wide as a tile, and else as wide as their sums and weights allow, because the cell has much to prepare for each. Each
// step takes them the other way round than the one before: where the weights do not fit into the caches, it finds there
// those that were used last.
class Stripes {
public:
    Stripes(Range vectors, std::int64_t tile, std::int64_t sum_bytes, std::int64_t weight_bytes, bool back)
        : vectors_(vectors), back_(back) {
        const std::int64_t most = std::max(tile, std::min(kSumBytes / sum_bytes, kWeightBytes / weight_bytes) / 2 * 2);
        together_ = most % 2 == 0 ? 2 : 1;  // cells compute two vectors at a time
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

// A tensor for one direction: see abi.h.
template <class T>
struct View {
    T* at;
    Stride step, row, slot, unit;
    bool packed;  // see live_rows.h; the sign of `step` tells the direction

    HWY_INLINE Lanes<T> read(const T* row_at, std::int64_t slot_number, std::int64_t j, std::int64_t count) const {
        const T* p = row_at + slot_number * slot;
        if (unit == 0) return static_cast<double>(*p);
        return load(p + j, count);
    }
};

// A weight as panels or, where these are null, as the caller has it: rows of `depth` elements, [slot, unit].
template <class T>
struct Weights {
    const T *panels = nullptr, *rows = nullptr;
};

// What the loops of a call have in common: its tensors for one direction, and where their elements are.
template <class C, class T>
class Loop {
public:
    static constexpr std::int64_t L = kLanes<T>;
    static constexpr std::int64_t W = Lanes<T>::kCount;  // units that a cell computes at a time
    static constexpr int kGates = C::kGates, kStates = C::kStates, kVectors = C::kVectors;
    using Real = Lanes<T>;

    Loop(const LoopWork& work, const std::uint32_t* constants, Member& member)
        : work_(work),
          cell_{constants},
          member_(member),
          steps_(work.params.T),
          batch_(work.params.N),
          units_(work.params.H),
          vectors_((units_ + L - 1) / L),
          has_mask_(constants[abi::kHasMask] != 0),
          has_lengths_(work.has_lengths != 0),
          scales_product_(constants[abi::kScalesProduct] != 0),
          two_phases_(work.two_phases != 0),
          keep_(constants[abi::kKeep]),
          live_{pointer<const std::int64_t>(work.live), steps_, batch_} {
        for (int g = 0; g < kGates; ++g) slot_[g] = constants[abi::kGateOrder] >> (4 * g) & 15U;
    }

protected:
    static LoopShape shape_of(const LoopWork& work, std::int64_t products, std::int64_t depth) {
        return {work.params.T,
                mean_rows(work),
                work.directions,
                (work.params.H + L - 1) / L,
                products,
                depth,
                L,
                sizeof(T),
                work.two_phases != 0 ? 2 : 1};
    }

    void use_direction(std::int64_t direction) {
        for (abi::uint v = 0; v < abi::kViews; ++v) {
            const abi::Strides& strides = work_.params.strides[v];
            views_[v] = {pointer<T>(work_.params.at[2 * v + static_cast<std::size_t>(direction)]),
                         strides.step[direction],
                         strides.row,
                         strides.slot,
                         strides.unit,
                         (work_.packed_views >> v & 1U) != 0};
        }
        weights_ = {pointer<const T>(work_.params.weights[direction]), pointer<const T>(work_.weight_rows[direction])};
        input_weights_ = {pointer<const T>(work_.input_weights[direction]),
                          pointer<const T>(work_.input_weight_rows[direction])};
    }

    // Batch rows are counted by position (see live_rows.h), which without lengths is their number.
    [[nodiscard]] std::int64_t length_of(std::int64_t n) const { return has_lengths_ ? live_.lengths()[n] : steps_; }

    // The positions of this member's group. Those of a group with lengths are spread over all, so that each group has
    // long and short ones.
    [[nodiscard]] std::int64_t position(std::int64_t i) const { return first_ + i * apart_; }
    // How many of them are live at step k: the first ones.
    [[nodiscard]] std::int64_t live_rows(std::int64_t k) const { return has_lengths_ ? among(live_.live(k)) : count_; }
    // How many steps any of them has.
    [[nodiscard]] std::int64_t group_steps() const { return length_of(first_); }
    // Whether one row alone of the whole batch is live at step k: see multiply_rows.
    [[nodiscard]] bool one_row(std::int64_t k) const { return has_lengths_ ? live_.live(k) == 1 : batch_ == 1; }

    // Where slot 0, unit 0 of a tensor stands for a step and a batch row that is live then.
    HWY_INLINE T* row(abi::uint view, std::int64_t k, std::int64_t n) const {
        const View<T>& v = views_[view];
        if (HWY_LIKELY(!has_lengths_)) return v.at + k * v.step + n * v.row;
        const std::int64_t end = live_.lengths()[n];
        if (v.packed) return v.at + (live_.firsts()[v.step < 0 ? end - 1 - k : k] + n) * v.row;
        return v.at + (v.step < 0 ? k + steps_ - end : k) * v.step + live_.order()[n] * v.row;
    }
    // Clears the member's units of a sequence where its group's batch rows have ended. Packed ones have no such rows.
    void clear_ended(abi::uint view, std::int64_t slots) const {
        const View<T>& v = views_[view];
        if (!has_lengths_ || v.packed || v.step == 0) return;
        T* const first = v.at + (v.step < 0 ? (steps_ - 1) * v.step : 0);  // of the time axis
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
    // The state that step k starts from.
    HWY_INLINE T* previous(abi::uint sequence, abi::uint initial, std::int64_t k, std::int64_t n) const {
        return k == 0 ? row(initial, 0, n) : row(sequence, k - 1, n);
    }
    // What lies between its slots.
    [[nodiscard]] HWY_INLINE Stride previous_slot(abi::uint sequence, abi::uint initial, std::int64_t k) const {
        return views_[k == 0 ? initial : sequence].slot;
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
            use_group(group, split);
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
        const std::int64_t blocks = blocks_of<T>(depth);
        for (std::int64_t block = 0; block < blocks; ++block) {
            const Range k = part_of(depth, block, blocks);
            const T* rows[kChunkRows];
            for (std::int64_t i = 0; i < count; ++i) rows[i] = operand[i] + k.begin;
            multiply_rows<T>(rows, count, k.end - k.begin, panels + k.begin * L, panel, vectors, one_row, sums,
                             sums_row);
        }
    }

    // sums[i][g - first] += operand[i] B of each gate's slot, for gates [first, end) and some vectors of units. The
    // sums of a row's gates are `sums_gate` elements apart.
    HWY_INLINE void multiply_gates(const T* const* operand, std::int64_t count, const Weights<T>& weights,
                                   std::int64_t depth, int first, int end, Range vectors, T* sums,
                                   std::int64_t sums_row, std::int64_t sums_gate, bool one_row) const {
        if (weights.panels == nullptr)
            return multiply_rows_of_gates(operand, count, weights.rows, depth, first, end, vectors, sums, sums_row,
                                          sums_gate, one_row);
        const std::int64_t panel = depth * L, some = vectors.end - vectors.begin;
        // Where tiles do not divide the units, all gates are one product: then fewer of the tiles are narrow.
        bool together = some == vectors_ && sums_gate == some * L && some % widest_tile(count) != 0;
        for (int g = first + 1; g < end; ++g) together = together && slot_[g] == slot_[g - 1] + 1;
        if (together)
            return multiply(operand, count, weights.panels + slot_[first] * vectors_ * panel, panel, depth,
                            (end - first) * some, sums, sums_row, one_row);
        for (int g = first; g < end; ++g)
            multiply(operand, count, weights.panels + (slot_[g] * vectors_ + vectors.begin) * panel, panel, depth, some,
                     sums + (g - first) * sums_gate, sums_row, one_row);
    }

    // The same with the weight as the caller has it: panels are made of a few units at a time and used at once.
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
    const std::int64_t steps_, batch_, units_, vectors_;
    const bool has_mask_, has_lengths_, scales_product_, two_phases_;
    const abi::uint keep_;  // see abi::kKeep
    const LiveRows live_;
    std::int64_t slot_[kGates];
    View<T> views_[abi::kViews];
    Weights<T> weights_, input_weights_;
    Range mine_{0, 0};
    std::int64_t count_ = 0;  // of the group's batch rows

private:
    // Batch rows of which about as many are live at each step, on average.
    static std::int64_t mean_rows(const LoopWork& work) {
        const std::int64_t steps = work.params.T, batch = work.params.N;
        if (work.has_lengths == 0) return batch;
        const auto* const lengths = pointer<const std::int32_t>(work.params.lengths);
        std::int64_t sum = 0;
        for (std::int64_t n = 0; n < batch; ++n) sum += lengths[n];
        return (sum + steps - 1) / steps;
    }

    void use_group(std::int64_t group, const Split& split) {
        const std::int64_t part = group % split.row_parts;
        use_direction(group / split.row_parts);
        const Range rows = part_of(batch_, part, split.row_parts);
        first_ = has_lengths_ ? part : rows.begin;
        apart_ = has_lengths_ ? split.row_parts : 1;
        count_ = has_lengths_ ? among(batch_) : rows.end - rows.begin;
    }
    // How many of the first `rows` positions are in the group.
    [[nodiscard]] std::int64_t among(std::int64_t rows) const {
        return rows <= first_ ? 0 : (rows - first_ + apart_ - 1) / apart_;
    }

    template <class Body>
    void finish_alone(std::int64_t group, const Split& split, const Body& body) {
        for (; group < directions() * split.row_parts; group += split.teams) {
            use_group(group, split);
            mine_ = {0, vectors_};
            body();
            if (member_.stopped()) return;
        }
    }

    std::int64_t first_ = 0, apart_ = 1;
    unsigned own_ = 0, members_ = 1, meeting_ = 0;
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
