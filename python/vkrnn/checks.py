"""Comparing a device's results with the float64 reference."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from vkrnn import reference
from vkrnn._calls import bind
from vkrnn._foreign import as_numpy
from vkrnn._output import table
from vkrnn.arrays import Array
from vkrnn.results import Results

__all__ = ["Comparison", "Report", "check"]


@dataclass(frozen=True)
class Comparison:
    """The comparison of one result with its reference.

    `error` is the largest ``|a - b| / max(1, max |b|)`` of the device's numbers a and the reference's b, and `index`
    its position, which is empty for a result without elements. If either number is not finite, the error is infinite
    unless both are the same.
    """

    name: str
    shape: tuple[int, ...]
    error: float
    index: tuple[int, ...]

    @staticmethod
    def of(name: str, got: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> Comparison:
        """Compare one array with its reference of the same shape."""
        if got.shape != wanted.shape:
            raise ValueError(f"[check] {name}: expected shape {list(wanted.shape)}, got {list(got.shape)}")
        if not wanted.size:
            return Comparison(name, got.shape, 0.0, ())
        finite = np.isfinite(wanted)
        scale = max(1.0, float(np.abs(wanted[finite]).max(initial=0.0)))
        with np.errstate(all="ignore"):
            error = np.abs(got - wanted) / scale
        alike = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
        error = np.where(alike, 0.0, np.where(np.isfinite(error), error, np.inf))
        worst = np.unravel_index(int(error.argmax()), error.shape)
        return Comparison(name, got.shape, float(error[worst]), tuple(int(i) for i in worst))


@dataclass(frozen=True, repr=False)
class Report:
    """What `check` returns: one comparison for each result, in the documented order."""

    function: str
    device: str
    tolerance: float
    comparisons: tuple[Comparison, ...]
    float32: Literal["ieee", "tf32"] = "ieee"  # as the plan of the call has it

    @property
    def ok(self) -> bool:
        """Whether every error is within the tolerance."""
        return all(comparison.error <= self.tolerance for comparison in self.comparisons)

    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """Return the rows of the table: result, shape, worst error, its position, verdict."""
        return [
            (c.name, str(list(c.shape)), f"{c.error:.1e}", str(list(c.index)), self._verdict(c))
            for c in self.comparisons
        ]

    def _verdict(self, comparison: Comparison) -> str:
        return "ok" if comparison.error <= self.tolerance else "WRONG"

    def _title(self) -> str:
        verdict = "agrees" if self.ok else "DISAGREES"
        rounded = "" if self.float32 == "ieee" else f"float32 {self.float32}, "
        return f"{self.function} on {self.device} {verdict} with the reference ({rounded}tolerance {self.tolerance:g})"

    def __repr__(self) -> str:
        """Return a small table."""
        return "\n".join([self._title(), *table([_HEADER, *self.rows()])])

    def _repr_html_(self) -> str:
        def row(cells: tuple[str, ...], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        body = row(_HEADER, "th") + "".join(row(cells, "td") for cells in self.rows())
        return f"<table><caption>{html.escape(self._title())}</caption>{body}</table>"


TF32_TOLERANCE = 5e-3  # ten times the rounding of 2^-11
_TOLERANCE = 5e-6
_HEADER = ("result", "shape", "worst error", "at", "")


def check(
    function: Callable[..., Results[Any]], /, *args: Any, tolerance: float | None = None, **kwargs: Any
) -> Report:
    """Compare a call on a device with the float64 reference.

    Parameters
    ----------
    function : callable
        One of the six operations, such as `vkrnn.lstm`.
    *args, **kwargs
        Arguments of the call, including ``device``. The reference gets the same values.
    tolerance : float, optional
        The largest error to accept, relative to the absmax of a result or to 1, whichever is larger. If not given,
        5e-6, or 5e-3 if the call rounds operands of products (``Device(..., float32="tf32")``). Long sequences and
        large layers accumulate more rounding, so give them a larger one.

    Returns
    -------
    Report
        It has ``ok`` and, for each result, the worst error and its position.

    Raises
    ------
    TypeError, ValueError, MemoryError, DeviceError
        As in the call itself.

    Examples
    --------
    >>> import numpy as np, vkrnn
    >>> report = check(vkrnn.single_gate_rnn, np.ones((5, 3, 4), np.float32), np.zeros((4, 4), np.float32))
    >>> report.ok, report.comparisons[0].name
    (True, 'output')
    """
    checked = bind("check", function, args, kwargs)  # mistakes are reported before anything runs
    got = function(*args, **kwargs)
    device = got[0].device if isinstance(got[0], Array) else checked.resolved(None)
    precision = checked.plan(device).float32
    if tolerance is None:
        tolerance = TF32_TOLERANCE if precision == "tf32" else _TOLERANCE
    for option in ("device", "out"):
        kwargs.pop(option, None)
    given = {name: as_numpy(value, "[check]") for name, value in kwargs.items()}
    wanted = getattr(reference, function.__name__)(*(as_numpy(value, "[check]") for value in args), **given)
    pairs = zip(wanted._asdict().items(), got, strict=True)
    comparisons = tuple(Comparison.of(name, np.asarray(array), ideal) for (name, ideal), array in pairs)
    return Report(function.__name__, device.name, tolerance, comparisons, precision)
