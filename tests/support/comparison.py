"""How results are compared with what they should be: by the largest error, relative to the largest value or to 1."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cases import Case
from tolerances import FLOAT32, FLOAT32_HIDDEN, FLOAT32_ORDERS, FLOAT32_RATIO, FLOAT32_STEPS

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
    """Fail with a line for each result that is off. Both must have the same results, in the same order.

    `tolerance` is for all results, or for each by name; as a function it is the `limits` by a program in float32 whose
    sums run in the order of that number. Each result may then be off by the largest of these.
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
    """Return whether the fixed tolerance holds for the case, whatever its numbers."""
    return case.T <= FLOAT32_STEPS and case.H <= FLOAT32_HIDDEN


def limits(case: Case, wanted: Mapping[str, Array], in_float32: Mapping[str, Array]) -> dict[str, float]:
    """Return what error each result may have, from what a NumPy program in float32 makes of it."""
    assert not within_contract(case)
    return {name: max(FLOAT32, FLOAT32_RATIO * scaled_error(in_float32[name], array)) for name, array in wanted.items()}
