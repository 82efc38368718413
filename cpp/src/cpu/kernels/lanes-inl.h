// Numbers side by side in a vector register, as the cells see them, and the functions that cells call on them.
// Included once for each instruction set.
#if defined(VKRNN_CPU_LANES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef VKRNN_CPU_LANES_INL_H
#undef VKRNN_CPU_LANES_INL_H
#else
#define VKRNN_CPU_LANES_INL_H
#endif

#include <cstdint>
#include <type_traits>

#include "abi.h"
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

// A vector with the operators of a number. A double becomes one in all lanes.
template <class T>
struct Lanes {
    Vector<T> raw;

    Lanes() = default;
    HWY_INLINE Lanes(double value) : raw(hn::Set(Tag<T>(), static_cast<T>(value))) {}
    HWY_INLINE explicit Lanes(Vector<T> vector) : raw(vector) {}

    friend HWY_INLINE Lanes operator+(Lanes a, Lanes b) { return Lanes(hn::Add(a.raw, b.raw)); }
    friend HWY_INLINE Lanes operator-(Lanes a, Lanes b) { return Lanes(hn::Sub(a.raw, b.raw)); }
    friend HWY_INLINE Lanes operator*(Lanes a, Lanes b) { return Lanes(hn::Mul(a.raw, b.raw)); }
    friend HWY_INLINE Lanes operator/(Lanes a, Lanes b) { return Lanes(hn::Div(a.raw, b.raw)); }
    HWY_INLINE Lanes& operator+=(Lanes b) { return *this = *this + b; }
};

// `count` numbers from p on, at most as many as there are lanes; zeros in the others.
template <class T>
HWY_INLINE Lanes<T> load(const T* p, std::int64_t count) {
    if (HWY_LIKELY(count == kLanes<T>)) return Lanes<T>(hn::LoadU(Tag<T>(), p));
    HWY_ALIGN T some[static_cast<std::size_t>(kLanes<T>)] = {};
    for (std::int64_t i = 0; i < count; ++i) some[i] = p[i];
    return Lanes<T>(hn::Load(Tag<T>(), some));
}

template <class T>
HWY_INLINE void store(Lanes<T> value, T* p, std::int64_t count) {
    if (HWY_LIKELY(count == kLanes<T>)) return hn::StoreU(value.raw, Tag<T>(), p);
    HWY_ALIGN T some[static_cast<std::size_t>(kLanes<T>)];
    hn::Store(value.raw, Tag<T>(), some);
    for (std::int64_t i = 0; i < count; ++i) p[i] = some[i];
}

// What exp needs to know of a type.
template <class T>
struct Exponential;

template <>
struct Exponential<float> {
    using Bits = std::int32_t;
    static constexpr int kMantissa = 23;
    static constexpr Bits kBias = 127;
    static constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: added, it leaves an integer in the low bits
    static constexpr float kLowest = -87.0F;      // exp of less counts as zero
    static constexpr float kLn2High = 0.693359375F, kLn2Low = -2.12194440e-4F;  // the first has few bits
    // Of the series of exp(r) - 1 - r, from the highest power on, divided by r^2; |r| <= ln(2) / 2.
    static constexpr float kSeries[] = {1.0F / 5040, 1.0F / 720, 1.0F / 120, 1.0F / 24, 1.0F / 6, 0.5F};
};

template <>
struct Exponential<double> {
    using Bits = std::int64_t;
    static constexpr int kMantissa = 52;
    static constexpr Bits kBias = 1023;
    static constexpr double kRound = 6755399441055744.0;
    static constexpr double kLowest = -708.0;
    static constexpr double kLn2High = 0.693147180369123816490, kLn2Low = 1.90821492927058770002e-10;
    static constexpr double kSeries[] = {1.0 / 6227020800.0, 1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0,
                                         1.0 / 362880.0,     1.0 / 40320.0,     1.0 / 5040.0,     1.0 / 720.0,
                                         1.0 / 120.0,        1.0 / 24.0,        1.0 / 6.0,        0.5};
};

// exp(x) = (1 + q) * scale for |x| up to about -kLowest, with |q| < 0.42 accurate relative to itself.
template <class T>
HWY_INLINE void exp_parts(Vector<T> x, Vector<T>& q, Vector<T>& scale) {
    using E = Exponential<T>;
    const Tag<T> d;
    const hn::Rebind<typename E::Bits, Tag<T>> bits;
    const auto shifted = hn::MulAdd(x, hn::Set(d, static_cast<T>(1.4426950408889634)), hn::Set(d, E::kRound));
    const auto n = hn::Sub(shifted, hn::Set(d, E::kRound));
    auto r = hn::NegMulAdd(n, hn::Set(d, E::kLn2High), x);
    r = hn::NegMulAdd(n, hn::Set(d, E::kLn2Low), r);
    auto series = hn::Set(d, E::kSeries[0]);
    for (std::size_t i = 1; i < std::size(E::kSeries); ++i) series = hn::MulAdd(series, r, hn::Set(d, E::kSeries[i]));
    q = hn::MulAdd(hn::Mul(r, r), series, r);
    const auto exponent = hn::Add(hn::BitCast(bits, shifted), hn::Set(bits, E::kBias));
    scale = hn::BitCast(d, hn::ShiftLeft<E::kMantissa>(exponent));
}

// n / d for d from 1 to 3, as exact as a division or nearly so.
template <class T>
HWY_INLINE Vector<T> divide(Vector<T> n, Vector<T> d) {
#if HWY_TARGET == HWY_AVX3
    if constexpr (sizeof(T) == sizeof(float)) {
        // Divisions of long vectors take several times as long as this.
        const Tag<T> tag;
        auto reciprocal = hn::ApproximateReciprocal(d);
        reciprocal = hn::MulAdd(reciprocal, hn::NegMulAdd(d, reciprocal, hn::Set(tag, T{1})), reciprocal);
        const auto quotient = hn::Mul(n, reciprocal);
        return hn::MulAdd(hn::NegMulAdd(d, quotient, n), reciprocal, quotient);
    }
#endif
    return hn::Div(n, d);
}

// Near 1 the results are 1 minus something small, which hides the last error of the division.
template <class T>
HWY_INLINE Vector<T> sigmoid(Vector<T> x) {
    const Tag<T> d;
    const auto one = hn::Set(d, T{1}), lowest = hn::Set(d, Exponential<T>::kLowest);
    const auto size = hn::Neg(hn::Abs(x));
    Vector<T> q, scale;
    exp_parts<T>(hn::Max(size, lowest), q, scale);
    const auto e = hn::IfThenZeroElse(hn::Lt(size, lowest), hn::MulAdd(q, scale, scale));
    const auto small = divide<T>(e, hn::Add(one, e));
    return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), small, hn::Sub(one, small));
}

// Of small arguments from exp(-2 |x|) - 1, which keeps their accuracy.
template <class T>
HWY_INLINE Vector<T> hyperbolic_tangent(Vector<T> x) {
    const Tag<T> d;
    const auto one = hn::Set(d, T{1}), two = hn::Set(d, T{2});
    const auto size = hn::Abs(x);
    Vector<T> q, scale;
    exp_parts<T>(hn::Max(hn::Neg(hn::Add(size, size)), hn::Set(d, Exponential<T>::kLowest)), q, scale);
    const auto e = hn::MulAdd(q, scale, scale), less_one = hn::MulAdd(q, scale, hn::Sub(scale, one));
    const auto is_small = hn::Lt(size, hn::Set(d, static_cast<T>(0.6)));
    const auto part = divide<T>(hn::IfThenElse(is_small, hn::Neg(less_one), hn::Add(e, e)),
                                hn::IfThenElse(is_small, hn::Add(two, less_one), hn::Add(one, e)));
    return hn::CopySign(hn::IfThenElse(is_small, part, hn::Sub(one, part)), x);
}

// The same as in activation.glsl.
inline constexpr double kHardSigmoidSlope = 0.2, kHardSigmoidOffset = 0.5;

template <class T>
HWY_INLINE Lanes<T> activate(abi::uint kind, Lanes<T> value) {
    const Tag<T> d;
    const auto x = value.raw, zero = hn::Zero(d), one = hn::Set(d, T{1});
    auto y = x;
    switch (kind) {
        case abi::kRelu: y = hn::Max(x, zero); break;
        case abi::kTanh: y = hyperbolic_tangent<T>(x); break;
        case abi::kSigmoid: y = sigmoid<T>(x); break;
        case abi::kHardSigmoid:
            y = hn::MulAdd(hn::Set(d, static_cast<T>(kHardSigmoidSlope)), x,
                           hn::Set(d, static_cast<T>(kHardSigmoidOffset)));
            y = hn::Min(hn::Max(y, zero), one);
            break;
        default: return value;
    }
    return Lanes<T>(hn::IfThenElse(hn::IsNaN(x), x, y));
}

// The derivative, from the activation's value y.
template <class T>
HWY_INLINE Lanes<T> derivative(abi::uint kind, Lanes<T> value) {
    const Tag<T> d;
    const auto y = value.raw, zero = hn::Zero(d), one = hn::Set(d, T{1});
    switch (kind) {
        case abi::kRelu: return Lanes<T>(hn::IfThenElseZero(hn::Gt(y, zero), one));
        case abi::kTanh: return (1.0 - value) * (1.0 + value);
        case abi::kSigmoid: return value * (1.0 - value);
        case abi::kHardSigmoid:
            return Lanes<T>(hn::IfThenElseZero(hn::And(hn::Gt(y, zero), hn::Lt(y, one)),
                                               hn::Set(d, static_cast<T>(kHardSigmoidSlope))));
        default: return Lanes<T>(one);
    }
}

}  // namespace vkrnn::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif
