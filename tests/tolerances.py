"""Every tolerance of the tests, with the reason beside it. Raising one needs a reason in the commit."""

# float64 results that differ only in the order of summation, relative to the largest value: some tens of roundings.
SAME_IN_FLOAT64 = 1e-13

# Against torch in float64: another BLAS, another exp and tanh, sums over all steps in another order.
TORCH_IN_FLOAT64 = 1e-12

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
# Beyond those, roundings add up over steps and sums: that many times what a NumPy program in float32 makes of the case.
FLOAT32_RATIO = 2

# An activation alone, in float32: relative to its value. Our own exp is within a unit in the last place, and Vulkan
# allows a division 2.5 more.
ACTIVATION = 4 * 2.0**-23

# onnxruntime computes in float32 too, with approximations of exp and tanh: the contract once for each side.
ONNX = 1e-5
