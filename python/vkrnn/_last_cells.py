"""Gradients of an LSTM's cell states, which vkrnn has after each direction's last step only."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["last_cells"]

Array = npt.NDArray[Any]


def last_cells(gradient: Array, D: int, lengths: Array | None, where: str) -> Array:
    """Return [N, DH], the gradients of the cells after each direction's last step, from those of all [T, N, DH].

    Raises
    ------
    NotImplementedError
        If there are gradients of other steps. `where` begins the message.
    """
    T, N, channels = gradient.shape
    H = channels // D
    ends = np.full(N, T) if lengths is None else lengths
    inside = np.arange(T)[:, np.newaxis] < ends
    rest = np.where(inside[:, :, np.newaxis], gradient, 0)  # padding is constant
    last = np.empty((N, channels), gradient.dtype)
    for at, direction in ((ends - 1, np.s_[:H]), (np.zeros(N, int), np.s_[H:])):
        last[:, direction] = rest[at, np.arange(N), direction]
        rest[at, np.arange(N), direction] = 0
    if rest.any():
        raise NotImplementedError(
            f"{where} cell_output: vkrnn has gradients of the cells after each direction's last step only"
        )
    return last
