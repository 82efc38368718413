"""Every tolerance of the tests with its reason. Raising one needs a reason in the commit."""

# float64 results that differ only in the order of summation, relative to the largest value: some tens of roundings.
SAME_IN_FLOAT64 = 1e-13

# Against torch in float64: another BLAS, another exp and tanh, sums over all steps in another order.
TORCH_IN_FLOAT64 = 1e-12

# Against the cells in plain JAX, for the same reasons.
JAX_IN_FLOAT64 = 1e-12

# Central differences of a float64 function. With step s the error is s^2 f''' / 6 from truncation (1e-10 for this step)
# and 2^-53 |f| / s from rounding (1e-11 |f|); the curvature of saturated gates takes up the rest (7e-9 seen).
DIFFERENCE_STEP = 1e-5
DIFFERENCE = 2e-8

# The complex step has no cancellation: only the roundings of forward and backward pass are left (1e-15 seen).
COMPLEX_STEP = 1e-30
COMPLEX = 2e-14

# The device's float32 against float64 on the same float32 inputs, relative to the largest value or to 1: the contract
# for short sequences (T <= 16) and narrow layers (H <= 128).
FLOAT32 = 5e-6
FLOAT32_STEPS, FLOAT32_HIDDEN = 16, 128
# Beyond those, roundings add up over steps and sums: this factor times the error of a float32 NumPy program.
FLOAT32_RATIO = 2
# The error of one program is one sample: over twelve seeds, that of a large LSTM's output (T31 N32 I61 H127) is between
# 9e-7 and 6e-5 on llvmpipe and on the native CPU device, with a geometric mean of 3e-6, because the case is
# ill-conditioned. The limit of such a case is therefore the worst of this many programs, which differ only in the order
# of their sums. The first one alone is run unless its limit is missed.
FLOAT32_ORDERS = 4

# The device's error limit in each dtype, against float64 on the same inputs, relative to absmax or to 1. In the 16-bit
# types, sums and the carried state are float32, so the result has float32's error and one rounding, half an epsilon.
# Devices with matrix units also round the operands of products to eleven bits. What this adds depends on the case:
# ROUNDED_RATIO times the error of a float64 program that rounds them. If cuBLASLt computes the products of gradients,
# the deltas and the operands that the call stores for all steps are in the type. Such a number d has an error of at
# most u |d|, with u half an epsilon, or half of the least subnormal number. A gradient that sums d x over all rows errs
# by at most u times the sum of |d x|, which is far more than u times the gradient where terms cancel. The program
# therefore rounds these numbers, too. Whatever passes from step to step does not contain these roundings, except with
# the time loop `split`: there cuBLASLt computes the recurrent products, so the program rounds their operands to the
# type. In float64 the limit is some thousands of roundings of 2^-53.
DTYPES = {
    "float64": 1e-12,
    "float32": FLOAT32,
    "float16": 2.0**-10 / 2 + FLOAT32,
    "bfloat16": 2.0**-7 / 2 + FLOAT32,
}

# From the second step on, a program and a device round different numbers: the factor is that of float32.
ROUNDED_RATIO = FLOAT32_RATIO

# The unit roundoff of operands with ten bits of mantissa: float32="tf32". test_precision.py derives the bound of each
# element from it. Whole LSTM calls are compared relative to absmax, with the roundings of two operands in a step's
# product and two more for errors of the steps before it.
TF32_UNIT = 2.0**-11
TF32 = 4 * TF32_UNIT

# Differences of the device's float64, by the five-point stencil with step s: s^4 / 30 times the fifth derivative from
# truncation (3e-14 for this step) and 2^-53 |f| / s from rounding (1e-13 |f|); the contract of the float64 gradients.
DEVICE_DIFFERENCE_STEP = 1e-3
DEVICE_DIFFERENCE = 1e-9

# An activation alone in float32, relative to its value. Our exp is within a unit in the last place, and Vulkan
# allows a division 2.5 more.
ACTIVATION = 4 * 2.0**-23

# The same in calls that round operands of products: there exp is the device's exp2. Vulkan allows exp2(x) 3 + 2 |x|
# units in the last place, of 2^-23 relative to the value, and |x| is at most 87 / ln 2 = 126.
ROUNDED_ACTIVATION = 256 * 2.0**-23

# onnxruntime computes in float32, too, with approximate exp and tanh: each side has the contract's error.
ONNX = 1e-5
