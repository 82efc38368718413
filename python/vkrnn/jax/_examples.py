"""Calls for each example of a `jax.vmap`: arrays have an axis in front for each vmap, of the examples or of size 1."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from vkrnn.results import STATES

__all__ = ["Call", "compute_examples"]

Arrays: TypeAlias = Mapping[str, Any]
Call: TypeAlias = Callable[[Arrays], dict[str, Any]]

# The axis of the batch rows, counted from the end, in the arguments that can differ between examples of one call.
_ROWS = {
    "source": -2,
    **dict.fromkeys((state.initial for state in STATES), -2),
    "lengths": -1,
    "reset": -2,
    "reset_state": -2,
    "reset_cell": -2,
}

_MASKS = {"mask", "zoneout_mask", "zoneout_cell_mask"}


def compute_examples(
    one: Call, arrays: Arrays, *, as_rows: bool, loop: Callable[[Call, Arrays], dict[str, Any]], numpy: Any
) -> dict[str, Any]:
    """Return the results of the call `one` for each example.

    `loop` calls a function for each element of the arrays' first axis and stacks the results. If `as_rows`, a call
    without masks computes all examples at once if these share the weights: their rows become rows of one batch.
    `numpy` is the module of that name, or JAX's.
    """
    axes = arrays["source"].ndim - 3
    if axes == 0:
        return one(arrays)
    sizes = zip(*(array.shape[:axes] for array in arrays.values()), strict=True)
    examples = tuple(next((size for size in along if size != 1), 1) for along in sizes)
    shared = {
        name: array.reshape(array.shape[axes:]) for name, array in arrays.items() if array.shape[:axes] == (1,) * axes
    }
    if as_rows and not _MASKS & arrays.keys() and shared.keys() >= arrays.keys() - _ROWS.keys():
        full = {
            name: numpy.broadcast_to(arrays[name], examples + arrays[name].shape[axes:])
            for name in _ROWS
            if name in arrays
        }
        flat = "reset" in full and full["reset"].ndim - axes == 2  # [T, N]
        rows = _ROWS | {"reset": -1} if flat else _ROWS
        merged = {name: _merge(array, axes, rows[name], numpy) for name, array in full.items()}
        N = arrays["source"].shape[-2]
        return {name: _split(array, examples, N, numpy) for name, array in one({**shared, **merged}).items()}
    own = {
        name: numpy.broadcast_to(array, examples + array.shape[axes:]).reshape(math.prod(examples), *array.shape[axes:])
        for name, array in arrays.items()
        if name not in shared
    }
    found = loop(lambda each: one({**shared, **each}), own) if own else one(shared)
    rest = 1 if own else 0
    return {name: array.reshape(*examples, *array.shape[rest:]) for name, array in found.items()}


def _merge(array: Any, axes: int, row: int, numpy: Any) -> Any:
    """Return an array with the first `axes` made part of the axis of its batch rows."""
    row += array.ndim
    beside = numpy.moveaxis(array, range(axes), range(row - axes, row))
    before, rows, after = beside.shape[: row - axes], beside.shape[row - axes : row + 1], beside.shape[row + 1 :]
    return beside.reshape(*before, math.prod(rows), *after)


def _split(array: Any, examples: tuple[int, ...], N: int, numpy: Any) -> Any:
    """Return a result [T, rows, channels] of merged rows with the axes of the `examples`, of N rows each, in front."""
    T, _, channels = array.shape
    apart = array.reshape(T, *examples, N, channels)
    return numpy.moveaxis(apart, range(1, 1 + len(examples)), range(len(examples)))
