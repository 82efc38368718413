// Vector registers as the cells see them, and the functions that cells call on them. Compiled for each instruction
// set.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/abi.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace vkrnn::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using Tag = hn::ScalableTag<T>;
template <class T>
using Vector = hn::Vec<Tag<T>>;
template <class T>
inline constexpr std::int64_t kLanes = static_cast<std::int64_t>(HWY_LANES(T));

// Loads `count` numbers from p. If these are fewer than a vector's lanes, the other lanes are 0.
template <class T>
HWY_INLINE Vector<T> load_vector(const T* p, std::int64_t count) {
    const Tag<T> d;
    if (HWY_LIKELY(count >= kLanes<T>)) return hn::LoadU(d, p);
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2  // masked-out memory is not accessed
    return hn::MaskedLoad(hn::FirstN(d, static_cast<std::size_t>(count)), d, p);
#else
    HWY_ALIGN T some[static_cast<std::size_t>(kLanes<T>)] = {};
    for (std::int64_t i = 0; i < count; ++i) some[i] = p[i];
    return hn::Load(d, some);
#endif
}

template <class T>
HWY_INLINE void store_vector(Vector<T> value, T* p, std::int64_t count) {
    const Tag<T> d;
    if (HWY_LIKELY(count >= kLanes<T>)) return hn::StoreU(value, d, p);
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
    hn::BlendedStore(value, hn::FirstN(d, static_cast<std::size_t>(count)), d, p);
#else
    HWY_ALIGN T some[static_cast<std::size_t>(kLanes<T>)];
    hn::Store(value, d, some);
    for (std::int64_t i = 0; i < count; ++i) p[i] = some[i];
#endif
}

// Two vectors with the operators of a number. There are two so that the processor can work on one while the other
// waits. A double converts to a value with that number in all lanes.
template <class T>
struct Lanes {
    static constexpr std::int64_t kCount = 2 * kLanes<T>;
    Vector<T> low, high;

    Lanes() = default;
    HWY_INLINE Lanes(double value) : low(hn::Set(Tag<T>(), static_cast<T>(value))), high(low) {}
    HWY_INLINE Lanes(Vector<T> first, Vector<T> second) : low(first), high(second) {}

    friend HWY_ATTR HWY_INLINE Lanes operator+(Lanes a, Lanes b) {
        return {hn::Add(a.low, b.low), hn::Add(a.high, b.high)};
    }
    friend HWY_ATTR HWY_INLINE Lanes operator-(Lanes a, Lanes b) {
        return {hn::Sub(a.low, b.low), hn::Sub(a.high, b.high)};
    }
    friend HWY_ATTR HWY_INLINE Lanes operator*(Lanes a, Lanes b) {
        return {hn::Mul(a.low, b.low), hn::Mul(a.high, b.high)};
    }
    friend HWY_ATTR HWY_INLINE Lanes operator/(Lanes a, Lanes b) {
        return {hn::Div(a.low, b.low), hn::Div(a.high, b.high)};
    }
    HWY_INLINE Lanes& operator+=(Lanes b) { return *this = *this + b; }

    // Returns a * x, but 0 where a is 0, whatever x is.
    friend HWY_ATTR HWY_INLINE Lanes part(Lanes a, Lanes x) {
        const auto zero = hn::Zero(Tag<T>());
        return {hn::IfThenZeroElse(hn::Eq(a.low, zero), hn::Mul(a.low, x.low)),
                hn::IfThenZeroElse(hn::Eq(a.high, zero), hn::Mul(a.high, x.high))};
    }
    friend HWY_ATTR HWY_INLINE Lanes max(Lanes a, Lanes b) { return {hn::Max(a.low, b.low), hn::Max(a.high, b.high)}; }
    // Returns 1 in lanes where x >= edge, else 0.
    friend HWY_ATTR HWY_INLINE Lanes step(Lanes edge, Lanes x) {
        const auto one = hn::Set(Tag<T>(), T{1});
        return {hn::IfThenElseZero(hn::Ge(x.low, edge.low), one), hn::IfThenElseZero(hn::Ge(x.high, edge.high), one)};
    }
    // Returns a in lanes where x >= edge, else b.
    friend HWY_ATTR HWY_INLINE Lanes choose(Lanes edge, Lanes x, Lanes a, Lanes b) {
        return {hn::IfThenElse(hn::Ge(x.low, edge.low), a.low, b.low),
                hn::IfThenElse(hn::Ge(x.high, edge.high), a.high, b.high)};
    }
};

// Loads `count` numbers from p, at most kCount. The other lanes are 0.
template <class T>
HWY_INLINE Lanes<T> load(const T* p, std::int64_t count) {
    constexpr std::int64_t L = kLanes<T>;
    if (HWY_LIKELY(count == Lanes<T>::kCount)) return {hn::LoadU(Tag<T>(), p), hn::LoadU(Tag<T>(), p + L)};
    return {load_vector(p, count), count > L ? load_vector(p + L, count - L) : hn::Zero(Tag<T>())};
}

template <class T>
HWY_INLINE void store(Lanes<T> value, T* p, std::int64_t count) {
    constexpr std::int64_t L = kLanes<T>;
    store_vector(value.low, p, count);
    if (HWY_LIKELY(count > L)) store_vector(value.high, p + L, count - L);
}

// Constants of exp for a type.
template <class T>
struct Exponential;

template <>
struct Exponential<float> {
    using Bits = std::int32_t;
    static constexpr int kMantissa = 23;
    static constexpr Bits kBias = 127;
    static constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it leaves an integer in the low bits
    static constexpr float kLowest = -88.0F;      // exp of this and of less counts as 0
    static constexpr float kLn2High = 0.693359375F, kLn2Low = -2.12194440e-4F;  // the first has few significant bits
    // Coefficients of (exp(r) - 1 - r) / r^2, highest power first, for |r| <= ln(2) / 2. This is not the Taylor series
    // but the polynomial with the smallest maximum error relative to exp(r) - 1: a quarter of a rounding error.
    static constexpr float kSeries[] = {1.39464962e-3F, 8.36661086e-3F, 4.16662805e-2F, 1.66665435e-1F, 0.5F};
};

template <>
struct Exponential<double> {
    using Bits = std::int64_t;
    static constexpr int kMantissa = 52;
    static constexpr Bits kBias = 1023;
    static constexpr double kRound = 6755399441055744.0;
    static constexpr double kLowest = -709.0;
    static constexpr double kLn2High = 0.693147180369123816490, kLn2Low = 1.90821492927058770002e-10;
    static constexpr double kSeries[] = {1.0 / 6227020800.0, 1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0,
                                         1.0 / 362880.0,     1.0 / 40320.0,     1.0 / 5040.0,     1.0 / 720.0,
                                         1.0 / 120.0,        1.0 / 24.0,        1.0 / 6.0,        0.5};
};

// Returns max(low, x), or NaN if x is NaN.
template <class T>
HWY_INLINE Vector<T> at_least(Vector<T> low, Vector<T> x) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR  // x86's instruction returns the second operand if one is NaN
    return hn::Max(low, x);
#else
    return hn::IfThenElse(hn::Lt(x, low), low, x);
#endif
}

// Returns min(high, x), or NaN if x is NaN.
template <class T>
HWY_INLINE Vector<T> at_most(Vector<T> high, Vector<T> x) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_SCALAR
    return hn::Min(high, x);
#else
    return hn::IfThenElse(hn::Gt(x, high), high, x);
#endif
}

// Splits exp(kTimes * x) into (1 + q) * scale, for kTimes 1 or 2. |q| < 0.42, and q has a small relative error. Valid
// for kTimes * x from kLowest, at which the scale is 0, to about -kLowest.
template <class T, int kTimes = 1>
HWY_INLINE void exp_parts(Vector<T> x, Vector<T>& q, Vector<T>& scale) {
    using E = Exponential<T>;
    const Tag<T> d;
    const hn::Rebind<typename E::Bits, Tag<T>> bits;
    const auto shifted = hn::MulAdd(x, hn::Set(d, static_cast<T>(kTimes * 1.4426950408889634)), hn::Set(d, E::kRound));
    const auto n = hn::Sub(shifted, hn::Set(d, E::kRound));
    auto r = hn::NegMulAdd(n, hn::Set(d, E::kLn2High), kTimes == 2 ? hn::Add(x, x) : x);
    r = hn::NegMulAdd(n, hn::Set(d, E::kLn2Low), r);
    // Coefficients in pairs (Estrin's scheme), because one chain of sums would take longer.
    constexpr std::size_t kTerms = std::size(E::kSeries), kFirst = 2 - kTerms % 2;
    const auto pair = [&](std::size_t i)
                          HWY_ATTR { return hn::MulAdd(hn::Set(d, E::kSeries[i]), r, hn::Set(d, E::kSeries[i + 1])); };
    const auto square = hn::Mul(r, r);
    auto series = hn::Set(d, E::kSeries[0]);
    if constexpr (kFirst == 2) series = pair(0);
    for (std::size_t i = kFirst; i < kTerms; i += 2) series = hn::MulAdd(series, square, pair(i));
    q = hn::MulAdd(square, series, r);
    const auto exponent = hn::Add(hn::BitCast(bits, shifted), hn::Set(bits, E::kBias));
    scale = hn::BitCast(d, hn::ShiftLeft<E::kMantissa>(exponent));
}

// Returns n / d for d >= 1, as exact as a division or nearly so.
template <class T>
HWY_INLINE Vector<T> divide(Vector<T> n, Vector<T> d) {
#if HWY_TARGET == HWY_AVX3
    if constexpr (sizeof(T) == sizeof(float)) {
        // Dividing long vectors takes several times as long as this Newton iteration.
        const Tag<T> tag;
        const auto about = hn::ApproximateReciprocal(d), quotient = hn::Mul(n, about);
        const auto reciprocal = hn::MulAdd(about, hn::NegMulAdd(d, about, hn::Set(tag, T{1})), about);
        return hn::MulAdd(hn::NegMulAdd(d, quotient, n), reciprocal, quotient);
    }
#endif
    return hn::Div(n, d);
}

// Above this argument of exp, sigmoid and tanh are 1 in both types.
inline constexpr double kSaturates = 44;

// Returns exp(x) / (exp(x) + 1) with a small relative error.
template <class T>
HWY_INLINE Vector<T> sigmoid(Vector<T> x) {
    const Tag<T> d;
    const auto lowest = hn::Set(d, Exponential<T>::kLowest), highest = hn::Set(d, static_cast<T>(kSaturates));
    Vector<T> q, scale;
    exp_parts<T>(at_most<T>(highest, at_least<T>(lowest, x)), q, scale);
    const auto y = hn::MulAdd(q, scale, scale);
    return divide<T>(y, hn::MulAdd(q, scale, hn::Add(scale, hn::Set(d, T{1}))));
}

// Returns (exp(2 x) - 1) / (exp(2 x) + 1) with a small relative error.
template <class T>
HWY_INLINE Vector<T> hyperbolic_tangent(Vector<T> x) {
    const Tag<T> d;
    const auto limit = hn::Set(d, static_cast<T>(kSaturates / 2));
    Vector<T> q, scale;
    exp_parts<T, 2>(at_most<T>(limit, at_least<T>(hn::Neg(limit), x)), q, scale);
    const auto one = hn::Set(d, T{1});
    const auto less_one = hn::MulAdd(q, scale, hn::Sub(scale, one));
    return divide<T>(less_one, hn::MulAdd(q, scale, hn::Add(scale, one)));
}

// Returns exp(min(x, 0)), which is exactly 1 at 0.
template <class T>
HWY_INLINE Vector<T> exponential(Vector<T> x) {
    const Tag<T> d;
    Vector<T> q, scale;
    exp_parts<T>(at_most<T>(hn::Zero(d), at_least<T>(hn::Set(d, Exponential<T>::kLowest), x)), q, scale);
    return hn::MulAdd(q, scale, scale);
}

template <class T>
HWY_INLINE Lanes<T> exponential(Lanes<T> x) {
    return {exponential<T>(x.low), exponential<T>(x.high)};
}

// Returns log(sigmoid(x)), as in activation.glsl.
template <class T>
HWY_INLINE Vector<T> log_sigmoid(Vector<T> x) {
    const Tag<T> d;
    constexpr int kLast = sizeof(T) == sizeof(float) ? 7 : 16;
    const auto e = exponential<T>(hn::Neg(hn::Abs(x)));
    const auto s = divide<T>(e, hn::Add(hn::Set(d, T{2}), e)), square = hn::Mul(s, s);
    auto series = hn::Set(d, T{1} / T{2 * kLast + 1});
    for (int k = kLast - 1; k >= 0; --k)
        series = hn::MulAdd(series, square, hn::Set(d, T{1} / static_cast<T>(2 * k + 1)));
    return hn::NegMulAdd(hn::Add(s, s), series, at_most<T>(hn::Zero(d), x));
}

template <class T>
HWY_INLINE Lanes<T> log_sigmoid(Lanes<T> x) {
    return {log_sigmoid<T>(x.low), log_sigmoid<T>(x.high)};
}

template <class T>
HWY_INLINE Vector<T> hard_sigmoid(Vector<T> x, Vector<T> alpha, Vector<T> beta) {
    const Tag<T> d;
    return at_most<T>(hn::Set(d, T{1}), at_least<T>(hn::Zero(d), hn::MulAdd(alpha, x, beta)));
}

// The activations and their derivatives, as in activation.glsl.
template <class T>
HWY_INLINE Lanes<T> activation_value(abi::uint kind, Lanes<T> x, T alpha, T beta) {
    const auto zero = hn::Zero(Tag<T>());
    switch (kind) {
        case abi::kRelu: return {at_least<T>(zero, x.low), at_least<T>(zero, x.high)};
        case abi::kTanh: return {hyperbolic_tangent<T>(x.low), hyperbolic_tangent<T>(x.high)};
        case abi::kSigmoid: return {sigmoid<T>(x.low), sigmoid<T>(x.high)};
        case abi::kHardSigmoid: {
            const auto slope = hn::Set(Tag<T>(), alpha), offset = hn::Set(Tag<T>(), beta);
            return {hard_sigmoid<T>(x.low, slope, offset), hard_sigmoid<T>(x.high, slope, offset)};
        }
        default: return x;
    }
}

// Derivatives are computed from the activation's value y.
template <class T>
HWY_INLINE Vector<T> relu_derivative(Vector<T> y) {
    const Tag<T> d;
    return hn::IfThenElseZero(hn::Gt(y, hn::Zero(d)), hn::Set(d, T{1}));
}

template <class T>
HWY_INLINE Vector<T> hard_sigmoid_derivative(Vector<T> y, T alpha) {
    const Tag<T> d;
    return hn::IfThenElseZero(hn::And(hn::Gt(y, hn::Zero(d)), hn::Lt(y, hn::Set(d, T{1}))), hn::Set(d, alpha));
}

template <class T>
HWY_INLINE Lanes<T> activation_derivative(abi::uint kind, Lanes<T> y, T alpha) {
    switch (kind) {
        case abi::kRelu: return {relu_derivative<T>(y.low), relu_derivative<T>(y.high)};
        case abi::kTanh: return (1.0 - y) * (1.0 + y);
        case abi::kSigmoid: return y * (1.0 - y);
        case abi::kHardSigmoid:
            return {hard_sigmoid_derivative<T>(y.low, alpha), hard_sigmoid_derivative<T>(y.high, alpha)};
        default: return 1.0;
    }
}

// Limits x to [-clip, clip]. NaN stays NaN.
template <class T>
HWY_INLINE Lanes<T> clipped(Lanes<T> x, T clip) {
    const auto high = hn::Set(Tag<T>(), clip), low = hn::Set(Tag<T>(), -clip);
    return {at_most<T>(high, at_least<T>(low, x.low)), at_most<T>(high, at_least<T>(low, x.high))};
}

// Returns `slope` where y lies between the two ends by a relative margin of more than `slack`, else 0. NaN counts as
// between.
template <class T>
HWY_INLINE Vector<T> slope_between(Vector<T> slope, Vector<T> y, Vector<T> end, Vector<T> other_end, T slack) {
    const Tag<T> d;
    const auto lower = hn::Min(end, other_end), upper = hn::Max(end, other_end);
    const auto low = hn::MulAdd(hn::Set(d, slack), hn::Abs(lower), lower);
    const auto high = hn::NegMulAdd(hn::Set(d, slack), hn::Abs(upper), upper);
    return hn::IfThenZeroElse(hn::Or(hn::Le(y, low), hn::Ge(y, high)), slope);
}

template <class T>
HWY_INLINE Lanes<T> slope_between(Lanes<T> slope, Lanes<T> y, Lanes<T> end, Lanes<T> other_end, T slack) {
    return {slope_between<T>(slope.low, y.low, end.low, other_end.low, slack),
            slope_between<T>(slope.high, y.high, end.high, other_end.high, slack)};
}

}  // namespace vkrnn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
