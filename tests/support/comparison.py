"""Comparison of results with references: the largest error, relative to absmax or to 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import vkrnn
from cases import Case
from tolerances import (
    DTYPES,
    FLOAT32,
    FLOAT32_HIDDEN,
    FLOAT32_ORDERS,
    FLOAT32_RATIO,
    FLOAT32_STEPS,
    ROUNDED_RATIO,
)

Array = NDArray[Any]


def scaled_error(got: Array, wanted: Array) -> float:
    """Return max |got - wanted| / max(1, max |wanted|); infinite if the shapes differ or anything is not finite."""
    if got.shape != wanted.shape or not (np.isfinite(got).all() and np.isfinite(wanted).all()):
        return np.inf
    if got.size == 0:
        return 0.0
    return float(np.abs(got.astype(np.float64) - wanted).max() / max(1.0, np.abs(wanted).max()))


def assert_close(
    got: Mapping[str, Array],
    wanted: Mapping[str, Array],
    tolerance: float | Mapping[str, float] | Callable[[int], Mapping[str, float]] = FLOAT32,
) -> None:
    """Fail with one line per wrong result. Both must have the same results in the same order.

    `tolerance` applies to all results, or is given by name. A function returns the `limits` from a float32 program with
    the n-th order of sums. Each result may then have the largest error of these programs.
    """
    assert list(got) == list(wanted)
    errors = {name: scaled_error(got[name], array) for name, array in wanted.items()}
    if callable(tolerance):
        allowed = tolerance(0)
        for order in range(1, FLOAT32_ORDERS):
            if all(error <= allowed[name] for name, error in errors.items()):
                return
            other = tolerance(order)
            allowed = {name: max(limit, other[name]) for name, limit in allowed.items()}
    else:
        allowed = tolerance if isinstance(tolerance, Mapping) else dict.fromkeys(wanted, tolerance)
    wrong = [
        f"{name} {list(got[name].shape)}: error {error:.2e}, at most {allowed[name]:.2e}"
        for name, error in errors.items()
        if not error <= allowed[name]
    ]
    assert not wrong, "\n".join(wrong)


def within_contract(case: Case) -> bool:
    """Return whether the fixed tolerance applies to the case."""
    return case.T <= FLOAT32_STEPS and case.H <= FLOAT32_HIDDEN


def limits(case: Case, wanted: Mapping[str, Array], in_float32: Mapping[str, Array]) -> dict[str, float]:
    """Return the allowed error of each result, from the error of a float32 NumPy program."""
    assert not within_contract(case)
    return {name: max(FLOAT32, FLOAT32_RATIO * scaled_error(in_float32[name], array)) for name, array in wanted.items()}


def dtype_limits(
    dtype: np.dtype[Any], device: vkrnn.Device, wanted: Mapping[str, Array], rounded: Callable[[], Mapping[str, Array]]
) -> dict[str, float]:
    """Return the allowed error of each result. `rounded` gives those of a program that rounds operands of products."""
    limits = dict.fromkeys(wanted, DTYPES[dtype.name])
    if dtype.itemsize == 2 and device.rounds_products:
        found = rounded()
        return {name: limits[name] + ROUNDED_RATIO * scaled_error(found[name], wanted[name]) for name in wanted}
    return limits
