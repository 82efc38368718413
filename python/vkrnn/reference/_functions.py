"""What the public functions have in common: docstrings, overflows, and sequences of different lengths."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from vkrnn._base.text import with_paragraphs
from vkrnn.reference._layout import Array
from vkrnn.results import STATES, Results

P = ParamSpec("P")
Kind = TypeVar("Kind", bound=Results[Any])

_PARAGRAPHS = {
    "parameters": """
        Parameters, results and equations are those of `vkrnn.{function}`. Arrays are anything that ``numpy.asarray``
        accepts. They are converted to float64, and results are float64. `name` has no effect.

        Raises
        ------
        ValueError
            If a shape is wrong.
        TypeError
            If the descriptor belongs to another function.
        """,
}

# Arguments and results with a batch axis, which is the second to last. An axis before it is time, of size 1 in
# [1, N, DH]. Other arrays are shared by all sequences, and their gradients are summed.
_BATCHED = {
    *("source", "mask", "source_gradient", "z_state", "reset", "reset_state", "reset_cell"),
    *("zoneout_mask", "zoneout_cell_mask"),
    *(name for state in STATES for name in state),
}
_INITIAL = {state.initial: state.gradient for state in STATES}


def public(function: Callable[P, Kind]) -> Callable[P, Kind]:
    """Complete a public function, which has its docstring to the paragraph ``{parameters}`` and ignores `lengths`.

    Overflows and NaN appear in the results, whatever `numpy.seterr` says.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Kind:
        with np.errstate(all="ignore"):
            if kwargs.get("lengths") is None:
                return function(*args, **kwargs)
            return _run_by_length(function, inspect.signature(function).bind(*args, **kwargs).arguments)

    return with_paragraphs(_PARAGRAPHS)(call)


def _run_by_length(function: Callable[..., Kind], arguments: Mapping[str, Any]) -> Kind:
    """Call `function` once for each length in ``arguments["lengths"]`` and combine the results.

    Arrays are cut to the length in time and to the rows of that length in the batch. Reverse and backward directions
    then start at their own ends, and last states are those of the last valid steps. Length 0 needs no call: the last
    states are the initial ones, and so are their gradients.
    """
    given = {name: value for name, value in arguments.items() if name != "lengths"}
    # A call on zeros checks the shapes and shows which results there are.
    zeros = {name: _zeros_like(value) for name, value in given.items() if _is_array(name, value)}
    whole = function(**given | zeros)
    steps, batch = whole[0].shape[:2]
    lengths = _check(function.__name__, arguments["lengths"], steps, batch)

    results = {name: np.zeros(array.shape) for name, array in whole._asdict().items()}
    reset = zeros.get("reset")
    if reset is not None and reset.ndim == 2:  # the batch axis is the second to last of the others
        given["reset"] = np.asarray(given["reset"])[..., None]
        results = {name: array[..., None] if name == "reset" else array for name, array in results.items()}
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        if length == 0:
            for state, last in _INITIAL.items():
                if state in results and last in zeros:
                    upstream = _cut(np.asarray(given[last]), length, rows)
                    if len(upstream) > 0:  # not those of all steps
                        results[state][..., rows, :] = upstream
            continue
        cut = {name: _cut(np.asarray(given[name]), length, rows) for name in zeros if name in _BATCHED}
        for name, part in function(**given | cut)._asdict().items():
            results[name] = _combined(name, results[name].astype(part.dtype, copy=False), part, length, rows)
    if reset is not None and "reset" in results:
        results["reset"] = results["reset"].reshape(reset.shape)
    return type(whole)(whole._function, results, results.values(), whole._reasons)  # noqa: SLF001


def _combined(name: str, total: Array, part: Array, length: int, rows: Array) -> Array:
    if name not in _BATCHED:
        total += part
    elif name in _INITIAL or total.ndim == 2:  # the latter: what resets start from
        total[..., rows, :] = part
    else:
        total[:length, rows] = part
    return total


def _zeros_like(value: ArrayLike) -> Array:
    array = np.asarray(value)
    return np.broadcast_to(np.zeros((), np.bool_ if array.dtype.kind == "b" else np.float64), array.shape)


def _is_array(name: str, value: object) -> bool:
    return value is not None and name not in ("descriptor", "name")


def _cut(array: Array, length: int, rows: Array) -> Array:
    """Return the first `length` steps of the sequences `rows`. An axis of size 1 applies to all steps or sequences."""
    if array.ndim > 2 and array.shape[-3] > 1:
        array = array[..., :length, :, :]
    if array.ndim > 1 and array.shape[-2] > 1:
        array = array[..., rows, :]
    return array


def _check(function: str, values: ArrayLike, steps: int, batch: int) -> Array:
    lengths = np.asarray(values)
    if lengths.dtype.kind not in "iu":
        raise TypeError(f"[{function}] lengths: expected dtype int32 or another integer, got {lengths.dtype.name}")
    if lengths.shape != (batch,):
        raise ValueError(f"[{function}] lengths: expected shape [N] = [{batch}], got {list(lengths.shape)}")
    wrong = np.flatnonzero((lengths < 0) | (lengths > steps))
    if len(wrong):
        first = int(wrong[0])
        raise ValueError(f"[{function}] lengths: expected 0 to T = {steps}, got {lengths[first]} at [{first}]")
    return lengths
