"""Comparing results, a device's or the caller's own, with the float64 reference."""

from __future__ import annotations

import html
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from vkrnn import _core, reference
from vkrnn._base.text import table
from vkrnn._interop.foreign import as_numpy
from vkrnn._ops.calls import bind
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
    """What `check` returns: one comparison for each result, in the documented order.

    `findings` says what is known about the wrong results of the caller: which gates are off, and whether another order
    of the gates explains the numbers.
    """

    function: str
    device: str
    tolerance: float
    comparisons: tuple[Comparison, ...]
    float32: Literal["ieee", "tf32"] = "ieee"  # as the plan of the call has it
    findings: tuple[str, ...] = ()

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
        where = f"on {self.device} " if self.device else "of the caller "
        return f"{self.function} {where}{verdict} with the reference ({rounded}tolerance {self.tolerance:g})"

    def __repr__(self) -> str:
        """Return a small table."""
        return "\n".join([self._title(), *table([_HEADER, *self.rows()]), *self.findings])

    def _repr_html_(self) -> str:
        def row(cells: tuple[str, ...], tag: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

        body = row(_HEADER, "th") + "".join(row(cells, "td") for cells in self.rows())
        findings = "".join(f"<p>{html.escape(finding)}</p>" for finding in self.findings)
        return f"<table><caption>{html.escape(self._title())}</caption>{body}</table>{findings}"


TF32_TOLERANCE = 5e-3  # ten times the rounding of 2^-11
_TOLERANCE = 5e-6
_TOLERANCES = {"float16": 5e-3, "bfloat16": 4e-2}  # likewise: they round by 2^-11 and 2^-8
_HEADER = ("result", "shape", "worst error", "at", "")


def check(
    function: Callable[..., Results[Any]],
    /,
    *args: Any,
    results: Any = None,
    tolerance: float | None = None,
    **kwargs: Any,
) -> Report:
    """Compare a call on a device, or the caller's own results, with the float64 reference.

    Parameters
    ----------
    function : callable
        One of the operations, such as `vkrnn.lstm`.
    *args, **kwargs
        Arguments of the call, including ``device``. The reference gets the same values.
    results : array, tuple of array or dict of str to array, optional
        The caller's own results of the same call, in the documented order or by name. They are compared instead of a
        device's, and may be fewer. The report says which gates of a wrong result are off. If another order of the gates
        explains all numbers, it names that order.
    tolerance : float, optional
        The largest error to accept, relative to the absmax of a result or to 1, whichever is larger. If not given,
        5e-6, 5e-3 if the call rounds operands of products (``Device(..., float32="tf32")``), and in float16 and
        bfloat16 5e-3 and 4e-2. Long sequences and large layers accumulate more rounding, so give them a larger one.

    Returns
    -------
    Report
        It has ``ok`` and, for each result, the worst error and its position.

    Raises
    ------
    TypeError, ValueError, MemoryError, DeviceError
        As in the call itself; also if `results` does not fit the call.

    Examples
    --------
    >>> import numpy as np, vkrnn
    >>> report = check(vkrnn.single_gate_rnn, np.ones((5, 3, 4), np.float32), np.zeros((4, 4), np.float32))
    >>> report.ok, report.comparisons[0].name
    (True, 'output')
    >>> mine = np.ones((5, 3, 4))  # relu of the source, since the recurrent weight is zero
    >>> check(vkrnn.single_gate_rnn, np.ones((5, 3, 4)), np.zeros((4, 4)), results=mine).ok
    True
    """
    checked = bind("check", function, args, kwargs)  # mistakes are reported before anything runs
    if results is not None:
        named = inspect.signature(function).bind(*args, **kwargs).arguments.items()
        given = {
            name: value if name == "descriptor" else as_numpy(value, "[check]")
            for name, value in named
            if name not in ("device", "out", "name")
        }
        usual = _usual_tolerance(given["source"])
        return _check_own(function.__name__, given, results, usual if tolerance is None else tolerance)
    got = function(*args, **kwargs)
    device = got[0].device if isinstance(got[0], Array) else checked.resolved(None)
    precision = checked.plan(device).float32
    if tolerance is None:
        tolerance = TF32_TOLERANCE if precision == "tf32" else _usual_tolerance(np.asarray(got[0]))
    for option in ("device", "out"):
        kwargs.pop(option, None)
    given = {name: as_numpy(value, "[check]") for name, value in kwargs.items()}
    wanted = getattr(reference, function.__name__)(*(as_numpy(value, "[check]") for value in args), **given)
    pairs = zip(wanted._asdict().items(), got, strict=True)
    comparisons = tuple(Comparison.of(name, np.asarray(array), ideal) for (name, ideal), array in pairs)
    return Report(function.__name__, device.name, tolerance, comparisons, precision)


def _usual_tolerance(array: Any) -> float:
    return _TOLERANCES.get(array.dtype.name, _TOLERANCE)


_Arrays = dict[str, Any]
# Axes with a block for each gate, counted from the end, of arguments and results.
_GATE_AXES = {"recurrent_weight": -2, "input_weight": -2, "bias": -1, "peephole": -1, "z_state": -1}


def _check_own(function: str, given: _Arrays, results: Any, tolerance: float) -> Report:
    """Compare the caller's results. `given` are the arguments of the call by name, with the descriptor."""
    wanted = getattr(reference, function)(**given)._asdict()
    mine = _named(results, tuple(wanted))
    comparisons = _compared(mine, wanted)
    report = Report(function, "", tolerance, comparisons)
    if report.ok:
        return report
    gates = _gates_of(function, given.get("descriptor"))
    D = 2 if getattr(given.get("descriptor"), "bidirectional", False) else 1
    findings = []
    for name in mine:
        if name in _GATE_AXES and len(gates) > 1 and mine[name].shape == wanted[name].shape:
            errors = _errors_of_gates(name, mine[name], wanted[name], gates, D)
            off = [f"{gate} ({error:.1e})" for gate, error in errors.items() if error > tolerance]
            if off:
                findings.append(f"{name}: wrong in the gates {', '.join(off)}")
    order = next(_orders_that_explain(function, given, mine, gates, D, tolerance), None)
    if order is not None:
        findings.append(
            f"the numbers are right if the gates of the weights are in the order {', '.join(order)}; "
            f"vkrnn has them in the order {', '.join(gates)}"
        )
    return Report(function, "", tolerance, comparisons, findings=tuple(findings))


def _named(results: Any, names: tuple[str, ...]) -> _Arrays:
    """Return the caller's results by name."""
    if isinstance(results, Mapping):
        unknown = sorted(set(results) - set(names))
        if unknown:
            raise ValueError(f"[check] results: expected some of {', '.join(names)}, got {', '.join(unknown)}")
        pairs = [(name, results[name]) for name in names if name in results]
    else:
        given = list(results) if isinstance(results, (tuple, list)) else [results]
        if len(given) > len(names):
            raise ValueError(f"[check] results: expected at most {len(names)}, {', '.join(names)}, got {len(given)}")
        pairs = list(zip(names, given, strict=False))
    if not pairs:
        raise ValueError(f"[check] results: expected some of {', '.join(names)}, got none")
    return {
        name: np.asarray(array.numpy() if isinstance(array, Array) else as_numpy(array, f"[check] {name}:"))
        for name, array in pairs
    }


def _compared(mine: _Arrays, wanted: _Arrays) -> tuple[Comparison, ...]:
    return tuple(Comparison.of(name, array, wanted[name]) for name, array in mine.items())


def _gates_of(function: str, descriptor: Any) -> tuple[str, ...]:
    """Return the names of the gates in the order of their blocks."""
    cell = next(cell for cell in _core.cells() if function in (cell.name, cell.gradients_name))
    gates = list(cell.gates)
    if getattr(descriptor, "forget_gate_last", False):
        gates[1:3] = gates[2:0:-1]
    if getattr(descriptor, "reset_gate_first", False):
        gates[:2] = gates[1::-1]
    return tuple(gates)


def _blocks(name: str, array: Any, gates: int, D: int) -> Any:
    """Return a view with an axis for the gates at the front."""
    axis = array.ndim + _GATE_AXES[name]
    directions = 1 if name == "recurrent_weight" and array.ndim == 3 else D
    if name == "peephole" and array.ndim == 2:
        directions = 1
    shape = (*array.shape[:axis], directions, gates, -1, *array.shape[axis + 1 :])
    return np.moveaxis(array.reshape(shape), axis + 1, 0)


def _errors_of_gates(name: str, mine: Any, wanted: Any, gates: tuple[str, ...], D: int) -> dict[str, float]:
    scale = max(1.0, float(np.abs(wanted).max(initial=0.0)))
    pairs = zip(gates, _blocks(name, mine, len(gates), D), _blocks(name, wanted, len(gates), D), strict=True)
    return {gate: float(np.abs(a - b).max(initial=0.0)) / scale for gate, a, b in pairs}


def _reordered(name: str, array: Any, order: tuple[int, ...], D: int) -> Any:
    """Return a copy whose block g is block ``order[g]`` of the array."""
    made = np.empty_like(array)
    _blocks(name, made, len(order), D)[:] = _blocks(name, array, len(order), D)[list(order)]
    return made


def _orders_that_explain(
    function: str, given: _Arrays, mine: _Arrays, gates: tuple[str, ...], D: int, tolerance: float
) -> Iterator[tuple[str, ...]]:
    """Yield orders of the gates' blocks in the weights with which the reference has the caller's results."""
    weights = [name for name in _GATE_AXES if given.get(name) is not None]
    if given.get("input_weight") is None:  # the source has the gates
        return
    for order in itertools.permutations(range(len(gates))):
        if order == tuple(range(len(gates))):
            continue
        back = tuple(int(block) for block in np.argsort(order))
        # Block b of the caller's weights is gate order[b], so gate g is block back[g].
        changed = given | {name: _reordered(name, np.asarray(given[name]), back, D) for name in weights}
        wanted = getattr(reference, function)(**changed)._asdict()
        again = {
            name: _reordered(name, array, order, D) if name in _GATE_AXES else array for name, array in wanted.items()
        }
        if all(comparison.error <= tolerance for comparison in _compared(mine, again)):
            yield tuple(gates[gate] for gate in order)
