"""The states after the last step of each direction, which results have as attributes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vkrnn.arrays import Array, asarray

__all__ = ["Ends", "last_rows"]


class Ends(NamedTuple):
    """What decides where the sequences of a call end.

    Results have a plain tuple of these, because every forward call makes one.
    """

    descriptor: Any
    lengths: Any
    init_state: Any
    init_cell: Any
    batch_first: bool = False  # of the results


def last_rows(sequence: Any, ends: tuple[Any, ...], *, of_cell: bool) -> Any:
    """Return a copy [N, D W] of the rows of a sequence [T, N, D W] after the last step of each direction.

    Batch rows of length 0 get the initial state, or zeros.
    """
    if isinstance(sequence, Array):
        return asarray(last_rows(sequence.numpy(), ends, of_cell=of_cell), device=sequence.device)
    descriptor, given, hidden, cell, batch_first = Ends(*ends)
    initial = cell if of_cell else hidden
    if batch_first:
        sequence = sequence.swapaxes(0, 1)
    T, N, width = sequence.shape
    lengths = np.full(N, T) if given is None else np.asarray(given)
    last: npt.NDArray[Any] = sequence[lengths.astype(np.int64) - 1, np.arange(N)]
    if getattr(descriptor, "bidirectional", False):
        last[:, width // 2 :] = sequence[0, :, width // 2 :]
    if initial is not None:
        start = initial.numpy() if isinstance(initial, Array) else np.asarray(initial)
        last[lengths == 0] = start.reshape(last.shape)[lengths == 0]
    else:
        last[lengths == 0] = 0
    return last
