"""Packed documents as resets."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["document_starts"]


def document_starts(cu_seqlens: npt.ArrayLike, steps: int | None = None) -> npt.NDArray[np.bool_]:
    """Return the reset for documents that are packed into one sequence, one after the other.

    Parameters
    ----------
    cu_seqlens : array of integers [documents + 1]
        The cumulative lengths of the documents, as FlashAttention takes them: 0, the end of the first document, and so
        on. Documents may be empty.
    steps : int, optional
        T, if the sequence goes on after the last document. What follows is then a document of its own.

    Returns
    -------
    array of bool [T, 1]
        The argument `reset` for a batch of one row: True where a document begins.

    Raises
    ------
    TypeError
        If `cu_seqlens` is no array of integers.
    ValueError
        If its numbers do not begin with 0, or decrease, or if `steps` is less than the last one.

    Examples
    --------
    >>> document_starts([0, 3, 5]).ravel()
    array([ True, False, False,  True, False])
    """
    where = "[vkrnn.convert.document_starts]"
    ends: npt.NDArray[Any] = np.asarray(cu_seqlens)
    if ends.dtype.kind not in "iu" or ends.ndim != 1 or len(ends) < 1:
        raise TypeError(f"{where} cu_seqlens: expected an array of integers [documents + 1], got {_shown(ends)}")
    if ends[0] != 0 or (ends[1:] < ends[:-1]).any():
        raise ValueError(f"{where} cu_seqlens: expected numbers from 0 on that do not decrease, got {ends.tolist()}")
    count = int(ends[-1]) if steps is None else steps
    if count < ends[-1]:
        raise ValueError(f"{where} steps: expected at least {ends[-1]}, got {steps}")
    reset = np.zeros((count, 1), np.bool_)
    reset[ends[ends < count]] = True
    return reset


def _shown(array: npt.NDArray[Any]) -> str:
    return f"{array.dtype.name} {list(array.shape)}"
