"""Calls on packed sequences, which have a row for each time step of each batch row and no padding.

A packed sequence is [S, ...] instead of [T, N, ...], where S is the sum of the lengths. Batch rows are sorted by
length, the longest first. The rows of step 0 come first, then those of step 1 of the batch rows that have one, and so
on. This is the order of ``torch.nn.utils.rnn.PackedSequence``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from vkrnn._ops.calls import run
from vkrnn.devices import resolve
from vkrnn.results import Results

__all__ = ["SEQUENCES", "call", "last_rows"]

Array = npt.NDArray[Any]

SEQUENCES = frozenset(
    ("source", "source_gradient", "z_state", "cell_output_fwd", "output_fwd", "output", "cell_output")
)
"""The arguments and results that are sequences."""


def call(name: str, given: Mapping[str, Any], descriptor: Any) -> Any:
    """Call one of the six functions by its `name` with packed sequences. Return its results, which are packed, too.

    The CPU computes packed sequences as they are, unless there is a mask. Otherwise they are padded.
    """
    if resolve(None, f"[{name}]").backend == "native" and "mask" not in given:
        return run(Results, name, {**given, "descriptor": descriptor}, packed=True)
    live = np.arange(given["lengths"][0])[:, np.newaxis] < given["lengths"]
    padded = {key: _pad(value, live) if key in SEQUENCES else value for key, value in given.items()}
    whole = run(Results, name, {**padded, "descriptor": descriptor})
    results = {key: value[live] if key in SEQUENCES else value for key, value in whole._asdict().items()}
    return Results(whole._function, tuple(results), list(results.values()), whole._reasons)  # noqa: SLF001


def last_rows(lengths: Array) -> Array:
    """Return the packed row of each batch row's last step."""
    N = len(lengths)
    live = N - np.searchsorted(lengths[::-1], np.arange(lengths[0]), side="right")
    rows: Array = (np.cumsum(live) - live)[lengths - 1] + np.arange(N)
    return rows


def _pad(packed: Array, live: Array) -> Array:
    padded = np.zeros((*live.shape, packed.shape[1]), packed.dtype)
    padded[live] = packed
    return padded
