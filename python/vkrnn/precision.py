"""The precision of float32 products, by PyTorch's names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Literal, cast, get_args

__all__ = ["Precision", "block_precision", "checked_precision", "fp32_precision"]

Precision = Literal["ieee", "tf32"]

block_precision: ContextVar[Precision | None] = ContextVar("vkrnn_fp32_precision", default=None)
"""The precision of the innermost `fp32_precision`."""


@contextlib.contextmanager
def fp32_precision(precision: Precision) -> Iterator[None]:
    """Set the precision of float32 products for calls of this thread within the block.

    It overrides the precision of devices and of outer blocks. See `Device` for what the precisions mean.

    Parameters
    ----------
    precision : {"ieee", "tf32"}
        As PyTorch names them in ``torch.backends.cudnn.rnn.fp32_precision``.

    Raises
    ------
    TypeError
        If it is no str.
    ValueError
        If there is no such precision.

    Examples
    --------
    >>> import vkrnn
    >>> with fp32_precision("tf32"):
    ...     vkrnn.default_device().float32
    'tf32'
    """
    token = block_precision.set(checked_precision(precision, "[fp32_precision] precision"))
    try:
        yield
    finally:
        block_precision.reset(token)


def checked_precision(precision: object, where: str) -> Precision:
    """Return the precision, or raise a TypeError or ValueError whose message begins with `where`."""
    if not isinstance(precision, str):
        raise TypeError(f"{where}: expected a str, got {type(precision).__name__}")
    if precision not in get_args(Precision):
        raise ValueError(f"{where}: expected 'ieee' or 'tf32', got {precision!r}")
    return cast(Precision, precision)
