// The five activations and their derivatives, accurate to about one unit in the last place on every device. exp is our
// own, because a driver's may be off by dozens of units and lose NaN. It is the device's only in calls that round
// operands of products anyway. Large arguments give exact limits.
#ifndef VKRNN_ACTIVATION_GLSL
#define VKRNN_ACTIVATION_GLSL
#include "common/real.glsl"
#include "common/step_abi.h"

SPECIALIZED(kHasClip, uint, has_clip, 0)
SPECIALIZED(kDeviceExp, uint, device_exp, 0)
SPECIALIZED_REAL(kHardSigmoidAlpha, hard_sigmoid_alpha)
SPECIALIZED_REAL(kHardSigmoidBeta, hard_sigmoid_beta)
SPECIALIZED_REAL(kClip, clip)
SPECIALIZED_REAL(kClipSlack, clip_slack)

#ifdef VKRNN_FLOAT64
CONSTANT Real kHighestExponent = Real(708.0f);   // exp(x) is taken as 0 for x < -708
CONSTANT Real kLog2E = Real(1.4426950408889634lf);
CONSTANT Real kLn2High = Real(0.693147180369123816490lf), kLn2Low = Real(1.90821492927058770002e-10lf);

// Returns the integer n nearest to x, and 2^n in `scale`.
INLINE Real nearest(Real x, OUT(Real) scale) {
    Real n = round(x);
    scale = packDouble2x32(uvec2(0, uint(int(n) + 1023) << 20));
    return n;
}

// Looks at the bits, because a compiler may assume that x == x.
INLINE bool is_nan(Real x) {
    uvec2 bits = unpackDouble2x32(x);
    uint high = bits.y & 0x7fffffffu;
    return high > 0x7ff00000u || (high == 0x7ff00000u && bits.x != 0);
}

// Returns (exp(r) - 1 - r) / r^2, from its Taylor series; |r| <= ln(2) / 2.
INLINE Real exp_tail(Real r) {
    Real tail = 1.0f / Real(479001600.0f) + r * (1.0f / Real(6227020800.0f));
    tail = 1.0f / Real(3628800.0f) + r * (1.0f / Real(39916800.0f) + r * tail);
    tail = 1.0f / Real(40320.0f) + r * (1.0f / Real(362880.0f) + r * tail);
    tail = 1.0f / Real(720.0f) + r * (1.0f / Real(5040.0f) + r * tail);
    tail = 1.0f / Real(24.0f) + r * (1.0f / Real(120.0f) + r * tail);
    return 0.5f + r * (1.0f / Real(6.0f) + r * tail);
}
#else
CONSTANT Real kHighestExponent = 87.0f;   // exp(x) is taken as 0 for x < -87
CONSTANT Real kLog2E = 1.44269504f, kLn2 = 0.693147181f;
// kLn2High has few bits, so that its product with an integer is exact.
CONSTANT Real kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;

// Returns the integer n nearest to x, and 2^n in `scale`. Floats near 1.5 * 2^23 are integers, and their last bits are
// those of the integer added to 1.5 * 2^23. The two additions are faster than rounding and converting.
INLINE Real nearest(Real x, OUT(Real) scale) {
    precise Real shifted = x + 12582912.0f;
    precise Real n = shifted - 12582912.0f;
    scale = uintBitsToFloat((floatBitsToUint(shifted) << 23) + 0x3f800000u);
    return n;
}

// Looks at the bits, because a compiler may assume that x == x.
INLINE bool is_nan(Real x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }

// Returns (exp(r) - 1 - r) / r^2, from the polynomial with the least relative error; |r| <= ln(2) / 2.
INLINE Real exp_tail(Real r) {
    Real r2 = r * r;
    return (0.49999997f + r * 0.16666543f) + r2 * ((0.0416672f + r * 0.008366586f) + r2 * 0.001388251f);
}
#endif

// Returns tanh(x), from e = exp(-2 |x|), or sigmoid(x), from e = exp(-|x|). Near 1 the result is 1 minus a small
// number. This hides the error of a driver's division, which may be a few units in the last place. With the device's
// exp2, the relative error is below 2^-15, as Vulkan limits that of exp2(x) to 3 + 2 |x| units in the last place. There
// exp2(x) may be infinite, which gives exactly 0 or 1.
INLINE Real logistic(bool tangent, Real x) {
#ifndef VKRNN_FLOAT64
    if (device_exp != 0) {
        float part = reciprocal(1.0f + exp2(x * (tangent ? 2.0f * kLog2E : -kLog2E))), x2 = x * x;
        if (!tangent) return part;
        // 1 - 2 part would cancel near 0. The Taylor series does not.
        return abs(x) < 0.125f ? x * (1.0f + x2 * (x2 * (2.0f / 15.0f) - 1.0f / 3.0f)) : 1.0f - 2.0f * part;
    }
#endif
    Real size = tangent ? 2.0f * abs(x) : abs(x), scale;
    Real exponent = -min(size, kHighestExponent);
    Real n = nearest(exponent * kLog2E, scale);
    Real r = (exponent - n * kLn2High) - n * kLn2Low;
    Real q = r + r * r * exp_tail(r);             // exp(r) - 1, with a small relative error
    Real less_one = q * scale + (scale - 1.0f);    // e - 1, with a small relative error
    Real e = size > kHighestExponent ? 0.0f : q * scale + scale;
    bool near_zero = tangent ? size < 1.2f : x < 0.0f;
    Real top = tangent ? near_zero ? -less_one : -2.0f * e : near_zero ? e : -e;
    Real y = (near_zero ? 0.0f : 1.0f) + top / (2.0f + less_one);
    return tangent && x < 0.0f ? -y : y;
}

// Returns exp(min(x, 0)); exactly 1 at 0. It repeats code of `logistic` on purpose. A shared function would pass its
// own `out` parameter on to `nearest`, and then the slices kernel of an LSTM takes four times as long on an H200.
INLINE Real exponential(Real x) {
#ifndef VKRNN_FLOAT64
    if (device_exp != 0) {
        float part = exp2(min(x, 0.0f) * kLog2E);
        return is_nan(x) ? x : part;
    }
#endif
    Real scale, exponent = clamp(x, -kHighestExponent, Real(0.0f));
    Real n = nearest(exponent * kLog2E, scale);
    Real r = (exponent - n * kLn2High) - n * kLn2Low;
    Real q = r + r * r * exp_tail(r);
    Real y = x < -kHighestExponent ? 0.0f : q * scale + scale;
    return is_nan(x) ? x : y;
}

INLINE Real choose(Real edge, Real x, Real a, Real b) { return x >= edge ? a : b; }

// Returns log(sigmoid(x)) = min(x, 0) - log(1 + e), where e = exp(-|x|) and log(1 + e) = 2 atanh(e / (2 + e)). The
// argument of atanh is at most 1/3, for which its Taylor series needs few terms. With the device's exp2 and log2, the
// absolute error is below 2^-20; that of a relative one would not matter, because the result is added to a logarithm.
INLINE Real log_sigmoid(Real x) {
#ifdef VKRNN_FLOAT64
    const int last = 16;
#else
    if (device_exp != 0) return min(x, 0.0f) - log2(1.0f + exp2(-abs(x) * kLog2E)) * kLn2;
    const int last = 7;
#endif
    Real e = exponential(-abs(x)), s = e / (2.0f + e), square = s * s, series = 1.0f / Real(2 * last + 1);
    for (int k = last - 1; k >= 0; --k) series = series * square + 1.0f / Real(2 * k + 1);
    return min(x, 0.0f) - 2.0f * s * series;
}

INLINE Real activate(uint kind, Real x) {
    Real y = x;
    if (kind == kRelu) y = x > 0.0f ? x : 0.0f;
    if (kind == kTanh || kind == kSigmoid) y = logistic(kind == kTanh, x);
    if (kind == kHardSigmoid) y = clamp(hard_sigmoid_alpha() * x + hard_sigmoid_beta(), 0.0f, 1.0f);
    bool keeps_nan = device_exp != 0 && (kind == kTanh || kind == kSigmoid);   // its arithmetic gives NaN by itself
    return !keeps_nan && is_nan(x) ? x : y;
}

// Returns the derivative of an activation from its value y.
INLINE Real derivative(uint kind, Real y) {
    if (kind == kRelu) return y > 0.0f ? 1.0f : 0.0f;
    if (kind == kTanh) return (1.0f - y) * (1.0f + y);
    if (kind == kSigmoid) return y * (1.0f - y);
    if (kind == kHardSigmoid) return y > 0.0f && y < 1.0f ? hard_sigmoid_alpha() : 0.0f;
    return 1.0f;
}

// Returns the sum that enters a gate, clamped if the option `clip` is set.
INLINE Real clipped(Real sum) { return has_clip == 0 || is_nan(sum) ? sum : clamp(sum, -clip(), clip()); }

// Returns the value of a gate from the sum that enters it. This is a macro because NVIDIA's compiler (580.159) does not
// inline calls nested more deeply than this inside the loop. The slices kernel of an LSTM would take 3.7 times as long
// on an H100.
#define activate_gate(kind, sum) activate(kind, clipped(sum))

// Returns the derivative of a gate with respect to the sum that enters it, from the gate's value y. A clamped sum gives
// one of the activation's values at the two thresholds; all other sums give values in between, because activations are
// monotonic. The slack allows for a y that has been rounded to 16 bits.
INLINE Real gate_derivative(uint kind, Real y) {
    Real slope = derivative(kind, y);
    if (has_clip == 0) return slope;
    Real a = activate(kind, -clip()), b = activate(kind, clip());
    Real low = min(a, b), high = max(a, b);
    return y <= low + clip_slack() * abs(low) || y >= high - clip_slack() * abs(high) ? 0.0f : slope;
}

#endif
