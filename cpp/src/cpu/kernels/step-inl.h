// One time step of a single batch row, for streams. All sums of a unit stay in registers from the bias to the new
// state. Compiled for each instruction set.
//
// The order of additions is that of Forward (forward-inl.h), so steps and calls give bit-identical results.
#pragma once

#include "product-inl.h"
#include "units-inl.h"

HWY_BEFORE_NAMESPACE();
namespace vkrnn::cpu::HWY_NAMESPACE {

// The weights of a step are in the order in which it reads them: [vector of units][k][gate][lane]. A processor's
// prefetchers follow such a stream best, and its second cache then gives a line nearly every cycle.

// total[g][u] = sum over k in [begin, end) of operand[k] * weights[u][k][g], for G gates and U vectors of units, whose
// weights are `apart` elements apart. Each sum is split into S partial sums that take turns along k.
template <class T, int G, int U, int S>
HWY_INLINE void multiply_run(const T* HWY_RESTRICT operand, std::int64_t begin, std::int64_t end, const T* weights,
                             std::int64_t apart, Vector<T> (&total)[G][U]) {
    constexpr std::int64_t L = kLanes<T>;
    const Tag<T> d;
    Vector<T> sum[S][G][U];
    for (int s = 0; s < S; ++s)
        for (int g = 0; g < G; ++g)
            for (int u = 0; u < U; ++u) sum[s][g][u] = hn::Zero(d);
    const auto add = [&](int s, std::int64_t k) HWY_ATTR {
        const auto a = hn::Set(d, operand[k]);
        for (int g = 0; g < G; ++g)
            for (int u = 0; u < U; ++u)
                sum[s][g][u] = hn::MulAdd(a, hn::LoadU(d, weights + u * apart + (k * G + g) * L), sum[s][g][u]);
    };
    std::int64_t k = begin;
    for (; k + S <= end; k += S)
        for (int s = 0; s < S; ++s) add(s, k + s);
    if constexpr (S > 1)
        for (; k < end; ++k) add(0, k);
    for (int g = 0; g < G; ++g)
        for (int u = 0; u < U; ++u) {
            for (int s = 1; s < S; ++s) sum[0][g][u] = hn::Add(sum[0][g][u], sum[s][g][u]);
            total[g][u] = sum[0][g][u];
        }
}

// sums[g][u] += sum over k of operand[k] * weights[u][k][g], in the same blocks and runs as in multiply_rows.
template <class T, int G, int U, int S>
HWY_INLINE void add_product(const T* HWY_RESTRICT operand, std::int64_t depth, const T* weights,
                            Vector<T> (&sums)[G][U]) {
    const std::int64_t blocks = blocks_of<T>(depth);
    std::int64_t k = 0;
    for (std::int64_t block = 0; block < blocks; ++block) {
        const std::int64_t block_end = blocks == 1 ? depth : part_of(depth, block, blocks).end;
        while (k < block_end) {
            const std::int64_t end = run_end(k, block_end);
            Vector<T> total[G][U];
            multiply_run<T, G, U, S>(operand, k, end, weights, depth * G * kLanes<T>, total);
            for (int g = 0; g < G; ++g)
                for (int u = 0; u < U; ++u) sums[g][u] = hn::Add(sums[g][u], total[g][u]);
            k = end;
        }
    }
}

// Returns whether add_product computes the product in a single run.
template <class T>
constexpr bool is_one_run(std::int64_t depth) {
    return blocks_of<T>(depth) <= 1 && run_end(0, depth) == depth;
}

template <class C, class T>
class RowStep {
    static constexpr std::int64_t L = kLanes<T>, W = 2 * L;
    static constexpr int kGates = C::kGates;
    using Real = Lanes<T>;

public:
    RowStep(const StepWork& work, const std::uint32_t* constants)
        : work_(work),
          cell_{constants},
          units_(work.units),
          vectors_((units_ + L - 1) / L),
          scales_product_(constants[abi::kScalesProduct] != 0),
          in_one_run_(is_one_run<T>(units_) && is_one_run<T>(work.features)) {
        for (int g = 0; g < kGates; ++g) slot_[g] = constants[abi::kGateOrder] >> (4 * g) & 15U;
    }

    // Computes the member's share of the units.
    void run(const Member& member) {
        const std::int64_t count = (vectors_ + 1) / 2;
        const Range pairs = member.size() == 1 ? Range{0, count} : part_of(count, member.rank(), member.size());
        for (std::int64_t i = pairs.begin; i < pairs.end; ++i) {
            const std::int64_t pair = work_.back != 0 ? pairs.end - 1 - (i - pairs.begin) : i;
            if (2 * pair + 1 < vectors_) {
                units<2>(2 * pair);
            } else {
                units<1>(2 * pair);
            }
        }
    }

private:
    // Vectors of units whose recurrent sums, with their partial sums, fit into the registers together.
    template <int U>
    static constexpr int kTogether = kGates == 1 ? U : 1;

    template <int U>
    using Sums = Vector<T>[kGates][U];

    template <int U>
    HWY_INLINE void units(std::int64_t v) {
        const Tag<T> d;
        const std::int64_t j = v * L, count = std::min(U * L, units_ - j);
        Sums<U> x;
        Vector<T> scaled[U];  // the candidate's product if a gate scales it
        for (int g = 0; g < kGates; ++g) {
            const T* const bias = pointer<const T>(work_.bias) + slot_[g] * work_.bias_slot + j;
            for (int u = 0; u < U; ++u)
                x[g][u] = work_.adds_bias != 0 ? load_vector(bias + u * L, count - u * L) : hn::Zero(d);
        }
        for (int u = 0; u < U; ++u) scaled[u] = hn::Zero(d);
        if (in_one_run_) {
            multiply_in_one_run<U>(v, x, scaled);
        } else {
            multiply<U>(v, x, scaled);
        }
        cell<U>(j, count, x, scaled);
    }

    // Computes both products, each in a single run. What is read last is read first in the next step, from the caches.
    template <int U>
    HWY_INLINE void multiply_in_one_run(std::int64_t v, Sums<U>& x, Vector<T> (&scaled)[U]) const {
        Sums<U> projected, recurrent;
        if (work_.back == 0) project_in_one_run<U>(v, projected);
        multiply_vectors<U, kTogether<U>, kTurns>(pointer<const T>(work_.hidden_before), units_, work_.weights, v,
                                                  recurrent);
        if (work_.back != 0) project_in_one_run<U>(v, projected);
        for (int g = 0; g < kGates; ++g)
            for (int u = 0; u < U; ++u) {
                x[g][u] = hn::Add(x[g][u], projected[g][u]);
                if (g + 1 == kGates && scales_apart()) {
                    scaled[u] = hn::Add(scaled[u], recurrent[g][u]);
                } else {
                    x[g][u] = hn::Add(x[g][u], recurrent[g][u]);
                }
            }
    }

    // Four gates have enough sums to keep the processor busy with one vector at a time, which reads the weights in
    // order. Fewer gates, and short sums, whose weights are in the first cache anyway, need both vectors.
    static constexpr std::int64_t kShortDepth = 32;

    template <int U>
    HWY_INLINE void project_in_one_run(std::int64_t v, Sums<U>& projected) const {
        if (work_.features == 0) return load_projected<U>(v, projected);
        const T* const source = pointer<const T>(work_.source);
        if (kGates < 4 || work_.features <= kShortDepth) {
            multiply_vectors<U, U, 1>(source, work_.features, work_.input_weights, v, projected);
        } else {
            multiply_vectors<U, 1, 1>(source, work_.features, work_.input_weights, v, projected);
        }
    }

    // Multiplies U vectors of units in a single run, `Together` of them at a time.
    template <int U, int Together, int S>
    HWY_INLINE void multiply_vectors(const T* operand, std::int64_t depth, Address weights, std::int64_t v,
                                     Sums<U>& sums) const {
        for (int i = 0; i < U / Together; ++i) {
            const int u = (work_.back == 0 ? i : U / Together - 1 - i) * Together;
            Sums<Together> some;
            multiply_run<T, kGates, Together, S>(operand, 0, depth, weights_of(weights, v + u, depth),
                                                 depth * kGates * L, some);
            // Only an index known at compile time keeps the sums in registers.
            for (int to = 0; to < U; to += Together)
                if (to == u)
                    for (int g = 0; g < kGates; ++g)
                        for (int n = 0; n < Together; ++n) sums[g][to + n] = some[g][n];
        }
    }

    // Loads x W^T, which is the source if there is no input weight.
    template <int U>
    HWY_INLINE void load_projected(std::int64_t v, Sums<U>& projected) const {
        const std::int64_t j = v * L, count = units_ - j;
        for (int g = 0; g < kGates; ++g)
            for (int u = 0; u < U; ++u)
                projected[g][u] =
                    load_vector(pointer<const T>(work_.source) + slot_[g] * units_ + j + u * L, count - u * L);
    }

    // Returns the weights of a vector of units.
    static HWY_INLINE const T* weights_of(Address weights, std::int64_t v, std::int64_t depth) {
        return pointer<const T>(weights) + v * depth * kGates * L;
    }

    template <int U>
    HWY_INLINE void multiply(std::int64_t v, Sums<U>& x, Vector<T> (&scaled)[U]) const {
        if (work_.features == 0) {
            Sums<U> projected;
            load_projected<U>(v, projected);
            for (int g = 0; g < kGates; ++g)
                for (int u = 0; u < U; ++u) x[g][u] = hn::Add(x[g][u], projected[g][u]);
        } else {
            add_product<T, kGates, U, 1>(pointer<const T>(work_.source), work_.features,
                                         weights_of(work_.input_weights, v, work_.features), x);
        }
        for (int u = 0; u < U; u += kTogether<U>) {
            Sums<kTogether<U>> sums;
            for (int n = 0; n < kTogether<U>; ++n) {
                for (int g = 0; g < kGates; ++g) sums[g][n] = x[g][u + n];
                if (scales_apart()) sums[kGates - 1][n] = scaled[u + n];
            }
            add_product<T, kGates, kTogether<U>, kTurns>(pointer<const T>(work_.hidden_before), units_,
                                                         weights_of(work_.weights, v + u, units_), sums);
            for (int n = 0; n < kTogether<U>; ++n) {
                for (int g = 0; g < kGates - 1; ++g) x[g][u + n] = sums[g][n];
                (scales_apart() ? scaled : x[kGates - 1])[u + n] = sums[kGates - 1][n];
            }
        }
    }

    [[nodiscard]] HWY_INLINE bool scales_apart() const { return C::kHasCandidate && scales_product_; }

    // A single vector serves as both halves. The compiler removes the unused work on the second.
    template <int U>
    static HWY_INLINE Real lanes(const Vector<T> (&vectors)[U]) {
        return {vectors[0], vectors[U - 1]};
    }
    // Units of U vectors.
    template <int U>
    struct SomeUnits {
        std::int64_t count;
        HWY_INLINE Real load(const T* p) const {
            if constexpr (U == 2) return HWY_NAMESPACE::load(p, count);
            const auto vector = load_vector(p, count);
            return {vector, vector};
        }
        HWY_INLINE void store(Real value, T* p) const {
            if constexpr (U == 2) return HWY_NAMESPACE::store(value, p, count);
            store_vector(value.low, p, count);
        }
    };

    // Everything is inlined, because only then does the compiler remove the unused half of a single vector.
    template <int U>
    HWY_FLATTEN void cell(std::int64_t j, std::int64_t count, const Sums<U>& sums, const Vector<T> (&scaled)[U]) {
        Real x[kGates], r[kGates];
        for (int g = 0; g < kGates; ++g) {
            x[g] = lanes<U>(sums[g]);
            r[g] = 0.0;
        }
        if (scales_apart()) r[kGates - 1] = lanes<U>(scaled);
        ForwardRow<T> at{};
        at.vectors = pointer<const T>(work_.vectors);
        at.vectors_slot = work_.vectors_slot;
        at.hidden_before = pointer<const T>(work_.hidden_before);
        at.hidden = pointer<T>(work_.hidden);
        at.cell_before = at.cell = pointer<T>(work_.cell);
        at.before_slot = at.cell_slot = units_;
        at.blend = {pointer<const T>(work_.blend), work_.blend_unit};
        at.blend_cell = {pointer<const T>(work_.blend_cell), work_.blend_cell_unit};
        step_units<0, kGates, 0>(cell_, at, slot_, j, SomeUnits<U>{count}, x, r, Real(1.0));
    }

    const StepWork& work_;
    C cell_;
    const std::int64_t units_, vectors_;
    const bool scales_product_, in_one_run_;
    std::int64_t slot_[kGates];
};

template <class C, class T>
void run_step(const std::byte* work, const std::uint32_t* constants, Member& member) {
    RowStep<C, T>(*reinterpret_cast<const StepWork*>(work), constants).run(member);
}

// Returns the threads of a time loop with one step and one batch row.
template <class C, class T>
unsigned step_threads(const std::byte* bytes, const std::uint32_t* /*constants*/, unsigned most) {
    const auto& work = *reinterpret_cast<const StepWork*>(bytes);
    constexpr std::int64_t L = kLanes<T>;
    return choose_split({1, 1, 1, (work.units + L - 1) / L, C::kGates, work.units + work.features, L, sizeof(T), 1},
                        most, contended())
        .threads();
}

}  // namespace vkrnn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
