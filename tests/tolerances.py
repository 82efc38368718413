"""Every tolerance of the tests, with the reason beside it. Raising one needs a reason in the commit."""

# float64 results that differ only in the order of summation, relative to the largest value: some tens of roundings.
SAME_IN_FLOAT64 = 1e-13

# Against torch in float64: another BLAS, another exp and tanh, sums over all steps in another order.
TORCH_IN_FLOAT64 = 1e-12

# Central differences of a float64 function. With step s the error is s^2 f''' / 6 from truncation (1e-10 for this step) and
# 2^-53 |f| / s from rounding (1e-11 |f|); curvature near saturated gates takes up the rest.
DIFFERENCE_STEP = 1e-5
DIFFERENCE = 2e-8

# The complex step has no cancellation: only the roundings of the function itself, and of the backward pass.
COMPLEX_STEP = 1e-30
COMPLEX = 1e-13
