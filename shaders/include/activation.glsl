// The five activations and their derivatives, accurate to about one unit in the last place on every device. exp is our
// own, because a driver's may be off by dozens of units and lose NaN. Large arguments give exact limits.
// The including file declares the constants of the hard sigmoid and of the option `clip`.
#ifndef VKRNN_ACTIVATION_GLSL
#define VKRNN_ACTIVATION_GLSL
#include "abi.h"
#include "real.glsl"

#ifdef VKRNN_FLOAT64
const Real kHighestExponent = Real(708.0lf);   // exp(x) is taken as 0 for x < -708
const Real kLog2E = Real(1.4426950408889634lf);
const Real kLn2High = Real(0.693147180369123816490lf), kLn2Low = Real(1.90821492927058770002e-10lf);

// Returns the integer n nearest to x, and 2^n in `scale`.
Real nearest(Real x, out Real scale) {
    Real n = round(x);
    scale = packDouble2x32(uvec2(0, uint(int(n) + 1023) << 20));
    return n;
}

// Looks at the bits, because a compiler may assume that x == x.
bool is_nan(Real x) {
    uvec2 bits = unpackDouble2x32(x);
    uint high = bits.y & 0x7fffffffu;
    return high > 0x7ff00000u || (high == 0x7ff00000u && bits.x != 0);
}

// Returns (exp(r) - 1 - r) / r^2, from its Taylor series; |r| <= ln(2) / 2.
Real exp_tail(Real r) {
    Real tail = 1.0 / Real(479001600.0lf) + r * (1.0 / Real(6227020800.0lf));
    tail = 1.0 / Real(3628800.0lf) + r * (1.0 / Real(39916800.0lf) + r * tail);
    tail = 1.0 / Real(40320.0lf) + r * (1.0 / Real(362880.0lf) + r * tail);
    tail = 1.0 / Real(720.0lf) + r * (1.0 / Real(5040.0lf) + r * tail);
    tail = 1.0 / Real(24.0lf) + r * (1.0 / Real(120.0lf) + r * tail);
    return 0.5 + r * (1.0 / Real(6.0lf) + r * tail);
}
#else
const Real kHighestExponent = 87.0;   // exp(x) is taken as 0 for x < -87
const Real kLog2E = 1.44269504;
// kLn2High has few bits, so that its product with an integer is exact.
const Real kLn2High = 0.693359375, kLn2Low = -2.12194440e-4;

// Returns the integer n nearest to x, and 2^n in `scale`. Floats near 1.5 * 2^23 are integers, and their last bits are
// those of the integer added to 1.5 * 2^23. The two additions are faster than rounding and converting.
Real nearest(Real x, out Real scale) {
    precise Real shifted = x + 12582912.0;
    precise Real n = shifted - 12582912.0;
    scale = uintBitsToFloat((floatBitsToUint(shifted) << 23) + 0x3f800000u);
    return n;
}

// Looks at the bits, because a compiler may assume that x == x.
bool is_nan(Real x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }

// Returns (exp(r) - 1 - r) / r^2, from the polynomial with the least relative error; |r| <= ln(2) / 2.
Real exp_tail(Real r) {
    Real r2 = r * r;
    return (0.49999997 + r * 0.16666543) + r2 * ((0.0416672 + r * 0.008366586) + r2 * 0.001388251);
}
#endif

// Returns tanh(x), from e = exp(-2 |x|), or sigmoid(x), from e = exp(-|x|). Near 1 the result is 1 minus a small
// number. This hides the error of a driver's division, which may be a few units in the last place.
Real logistic(bool tangent, Real x) {
    Real size = tangent ? 2.0 * abs(x) : abs(x), scale;
    Real exponent = -min(size, kHighestExponent);
    Real n = nearest(exponent * kLog2E, scale);
    Real r = (exponent - n * kLn2High) - n * kLn2Low;
    Real q = r + r * r * exp_tail(r);             // exp(r) - 1, with a small relative error
    Real less_one = q * scale + (scale - 1.0);    // e - 1, with a small relative error
    Real e = size > kHighestExponent ? 0.0 : q * scale + scale;
    bool near_zero = tangent ? size < 1.2 : x < 0.0;
    Real top = tangent ? near_zero ? -less_one : -2.0 * e : near_zero ? e : -e;
    Real y = (near_zero ? 0.0 : 1.0) + top / (2.0 + less_one);
    return tangent && x < 0.0 ? -y : y;
}

// Returns exp(x) for x <= 0; exactly 1 at 0. It repeats code of `logistic` on purpose. A shared function would pass its
// own `out` parameter on to `nearest`, and then the slices kernel of an LSTM takes four times as long on an H200.
Real exponential(Real x) {
    Real scale, exponent = max(x, -kHighestExponent);
    Real n = nearest(exponent * kLog2E, scale);
    Real r = (exponent - n * kLn2High) - n * kLn2Low;
    Real q = r + r * r * exp_tail(r);
    Real y = x < -kHighestExponent ? 0.0 : q * scale + scale;
    return is_nan(x) ? x : y;
}

Real activate(uint kind, Real x) {
    Real y = x;
    if (kind == kRelu) y = x > 0.0 ? x : 0.0;
    if (kind == kTanh || kind == kSigmoid) y = logistic(kind == kTanh, x);
    if (kind == kHardSigmoid) y = clamp(hard_sigmoid_alpha() * x + hard_sigmoid_beta(), 0.0, 1.0);
    return is_nan(x) ? x : y;
}

// Returns the derivative of an activation from its value y.
Real derivative(uint kind, Real y) {
    if (kind == kRelu) return y > 0.0 ? 1.0 : 0.0;
    if (kind == kTanh) return (1.0 - y) * (1.0 + y);
    if (kind == kSigmoid) return y * (1.0 - y);
    if (kind == kHardSigmoid) return y > 0.0 && y < 1.0 ? hard_sigmoid_alpha() : 0.0;
    return 1.0;
}

// Returns the sum that enters a gate, clamped if the option `clip` is set.
Real clipped(Real sum) { return has_clip == 0 || is_nan(sum) ? sum : clamp(sum, -clip(), clip()); }

// Returns the value of a gate from the sum that enters it. This is a macro because NVIDIA's compiler (580.159) does not
// inline calls nested more deeply than this inside the loop. The slices kernel of an LSTM would take 3.7 times as long
// on an H100.
#define activate_gate(kind, sum) activate(kind, clipped(sum))

// Returns the derivative of a gate with respect to the sum that enters it, from the gate's value y. A clamped sum gives
// one of the activation's values at the two thresholds; all other sums give values in between, because activations are
// monotonic. The slack allows for a y that has been rounded to 16 bits.
Real gate_derivative(uint kind, Real y) {
    Real slope = derivative(kind, y);
    if (has_clip == 0) return slope;
    Real a = activate(kind, -clip()), b = activate(kind, clip());
    Real low = min(a, b), high = max(a, b);
    return y <= low + clip_slack() * abs(low) || y >= high - clip_slack() * abs(high) ? 0.0 : slope;
}

#endif
