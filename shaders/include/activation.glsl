// The five activations and their derivatives, accurate to about one unit in the last place on every device: exp is ours,
// because drivers' own may be off by dozens of units and lose NaN. Large arguments give exact limits.
#ifndef VKRNN_ACTIVATION_GLSL
#define VKRNN_ACTIVATION_GLSL
#include "abi.h"

const float kHardSigmoidSlope = 0.2;
const float kHardSigmoidOffset = 0.5;

// By bits: a compiler may assume that x == x.
bool is_nan(float x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }

// exp(x) = (1 + q) * scale for -88 <= x <= 0, with |q| < 0.42 accurate relative to itself.
void exp_parts(float x, out float q, out float scale) {
    float n = round(x * 1.44269504);
    float r = (x - n * 0.693359375) - n * -2.12194440e-4;   // ln 2 in two parts; the first has few bits
    float tail = 1.0 / 720.0 + r * (1.0 / 5040.0);
    tail = 1.0 / 24.0 + r * (1.0 / 120.0 + r * tail);
    q = r + r * r * (0.5 + r * (1.0 / 6.0 + r * tail));
    scale = uintBitsToFloat(uint(int(n) + 127) << 23);
}

// Near 1 the results are 1 minus something small: that hides the few units by which a driver's division may be off.
float sigmoid(float x) {
    float q, scale;
    exp_parts(max(-abs(x), -87.0), q, scale);
    float e = -abs(x) < -87.0 ? 0.0 : (1.0 + q) * scale;
    float small = e / (1.0 + e);
    return x < 0.0 ? small : 1.0 - small;
}

float hyperbolic_tangent(float x) {
    float q, scale;
    exp_parts(max(-2.0 * abs(x), -87.0), q, scale);
    float e = (1.0 + q) * scale;
    float less_one = scale == 1.0 ? q : e - 1.0;   // exp(-2|x|) - 1
    float y = abs(x) < 0.6 ? -less_one / (2.0 + less_one) : 1.0 - 2.0 * e / (1.0 + e);
    return x < 0.0 ? -y : y;
}

float activate(uint kind, float x) {
    float y = x;
    if (kind == kRelu) y = x > 0.0 ? x : 0.0;
    if (kind == kTanh) y = hyperbolic_tangent(x);
    if (kind == kSigmoid) y = sigmoid(x);
    if (kind == kHardSigmoid) y = clamp(kHardSigmoidSlope * x + kHardSigmoidOffset, 0.0, 1.0);
    return is_nan(x) ? x : y;
}

// The derivative, from the activation's value y.
float derivative(uint kind, float y) {
    if (kind == kRelu) return y > 0.0 ? 1.0 : 0.0;
    if (kind == kTanh) return (1.0 - y) * (1.0 + y);
    if (kind == kSigmoid) return y * (1.0 - y);
    if (kind == kHardSigmoid) return y > 0.0 && y < 1.0 ? kHardSigmoidSlope : 0.0;
    return 1.0;
}

#endif
