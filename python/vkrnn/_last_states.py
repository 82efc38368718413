"""The states after the last step of each direction, which results have as attributes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vkrnn.arrays import Array, asarray

__all__ = ["Ends", "last_rows"]


class Ends(NamedTuple):
    """What decides where the sequences of a call end: the arguments of the call with these names, or None.

    If `batch_first`, the sequences are [N, T, ...].
    """

    bidirectional: bool
    lengths: Any
    init_state: Any
    init_cell: Any
    batch_first: bool = False


def last_rows(sequence: Any, ends: Ends, initial: Any) -> Any:
    """Return a copy [N, D W] of the rows of a sequence [T, N, D W] after the last step of each direction.

    Batch rows of length 0 get the initial state, or zeros.
    """
    if isinstance(sequence, Array):
        start = initial.numpy() if isinstance(initial, Array) else initial
        return asarray(last_rows(sequence.numpy(), ends, start), device=sequence.device)
    if ends.batch_first:
        sequence = sequence.swapaxes(0, 1)
    T, N, width = sequence.shape
    lengths = np.full(N, T) if ends.lengths is None else np.asarray(ends.lengths)
    last: npt.NDArray[Any] = sequence[lengths.astype(np.int64) - 1, np.arange(N)]
    if ends.bidirectional:
        last[:, width // 2 :] = sequence[0, :, width // 2 :]
    last[lengths == 0] = 0 if initial is None else np.asarray(initial).reshape(last.shape)[lengths == 0]
    return last
