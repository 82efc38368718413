// The five activations and their derivatives, accurate to about one unit in the last place on every device: exp is ours,
// because drivers' own may be off by dozens of units and lose NaN. Large arguments give exact limits.
#ifndef VKRNN_ACTIVATION_GLSL
#define VKRNN_ACTIVATION_GLSL
#include "abi.h"
#include "real.glsl"

const Real kHardSigmoidSlope = Real(0.2lf);
const Real kHardSigmoidOffset = 0.5;

#ifdef VKRNN_FLOAT64
const Real kLowestExponent = Real(-708.0lf);   // exp of less counts as zero
const Real kLog2E = Real(1.4426950408889634lf);
const Real kLn2High = Real(0.693147180369123816490lf), kLn2Low = Real(1.90821492927058770002e-10lf);

Real two_to(int n) { return packDouble2x32(uvec2(0, uint(n + 1023) << 20)); }

// By bits: a compiler may assume that x == x.
bool is_nan(Real x) {
    uvec2 bits = unpackDouble2x32(x);
    uint high = bits.y & 0x7fffffffu;
    return high > 0x7ff00000u || (high == 0x7ff00000u && bits.x != 0);
}

// The series of exp(r) from r^6 on, divided by r^6; |r| <= ln(2) / 2.
Real exp_tail(Real r) {
    Real tail = 1.0 / Real(479001600.0lf) + r * (1.0 / Real(6227020800.0lf));
    tail = 1.0 / Real(3628800.0lf) + r * (1.0 / Real(39916800.0lf) + r * tail);
    tail = 1.0 / Real(40320.0lf) + r * (1.0 / Real(362880.0lf) + r * tail);
    return 1.0 / Real(720.0lf) + r * (1.0 / Real(5040.0lf) + r * tail);
}
#else
const Real kLowestExponent = -87.0;   // exp of less counts as zero
const Real kLog2E = 1.44269504;
const Real kLn2High = 0.693359375, kLn2Low = -2.12194440e-4;   // the first has few bits

Real two_to(int n) { return uintBitsToFloat(uint(n + 127) << 23); }

// By bits: a compiler may assume that x == x.
bool is_nan(Real x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }

// The series of exp(r) from r^6 on, divided by r^6; |r| <= ln(2) / 2.
Real exp_tail(Real r) { return 1.0 / 720.0 + r * (1.0 / 5040.0); }
#endif

// exp(x) = (1 + q) * scale for kLowestExponent <= x <= 0, with |q| < 0.42 accurate relative to itself.
void exp_parts(Real x, out Real q, out Real scale) {
    Real n = round(x * kLog2E);
    Real r = (x - n * kLn2High) - n * kLn2Low;
    Real tail = 1.0 / Real(24.0lf) + r * (1.0 / Real(120.0lf) + r * exp_tail(r));
    q = r + r * r * (0.5 + r * (1.0 / Real(6.0lf) + r * tail));
    scale = two_to(int(n));
}

// Near 1 the results are 1 minus something small: that hides the few units by which a driver's division may be off.
Real sigmoid(Real x) {
    Real q, scale;
    exp_parts(max(-abs(x), kLowestExponent), q, scale);
    Real e = -abs(x) < kLowestExponent ? 0.0 : (1.0 + q) * scale;
    Real small = e / (1.0 + e);
    return x < 0.0 ? small : 1.0 - small;
}

Real hyperbolic_tangent(Real x) {
    Real q, scale;
    exp_parts(max(-2.0 * abs(x), kLowestExponent), q, scale);
    Real e = (1.0 + q) * scale;
    Real less_one = scale == 1.0 ? q : e - 1.0;   // exp(-2|x|) - 1
    Real y = abs(x) < 0.6 ? -less_one / (2.0 + less_one) : 1.0 - 2.0 * e / (1.0 + e);
    return x < 0.0 ? -y : y;
}

Real activate(uint kind, Real x) {
    Real y = x;
    if (kind == kRelu) y = x > 0.0 ? x : 0.0;
    if (kind == kTanh) y = hyperbolic_tangent(x);
    if (kind == kSigmoid) y = sigmoid(x);
    if (kind == kHardSigmoid) y = clamp(kHardSigmoidSlope * x + kHardSigmoidOffset, 0.0, 1.0);
    return is_nan(x) ? x : y;
}

// The derivative, from the activation's value y.
Real derivative(uint kind, Real y) {
    if (kind == kRelu) return y > 0.0 ? 1.0 : 0.0;
    if (kind == kTanh) return (1.0 - y) * (1.0 + y);
    if (kind == kSigmoid) return y * (1.0 - y);
    if (kind == kHardSigmoid) return y > 0.0 && y < 1.0 ? kHardSigmoidSlope : 0.0;
    return 1.0;
}

#endif
