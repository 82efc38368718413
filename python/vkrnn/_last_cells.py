"""Gradients of an LSTM's cell states, which vkrnn has after each direction's last step only."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vkrnn import _core

__all__ = ["last_cells"]

Array = npt.NDArray[Any]


def last_cells(gradient: Array, D: int, lengths: Array | None, where: str) -> Array:
    """Return [N, DH], the gradients of the cells after each direction's last step, from those of all [T, N, DH].

    Raises
    ------
    NotImplementedError
        If there are gradients of other steps. `where` begins the message.
    """
    last = np.zeros(gradient.shape[1:], gradient.dtype)
    _core.copy_last_cells(gradient, D, lengths, last, where)
    return last
