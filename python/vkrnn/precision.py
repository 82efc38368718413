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

_blocks: ContextVar[tuple[list[Precision], ...]] = ContextVar("vkrnn_fp32_precision_blocks", default=())


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
    block = [checked_precision(precision, "[fp32_precision] precision")]
    _set_blocks((*_blocks.get(), block))
    try:
        yield
    finally:  # perhaps before an inner block, if these are in generators
        _set_blocks(tuple(each for each in _blocks.get() if each is not block))


def _set_blocks(blocks: tuple[list[Precision], ...]) -> None:
    _blocks.set(blocks)
    block_precision.set(blocks[-1][0] if blocks else None)


def checked_precision(precision: object, where: str) -> Precision:
    """Return the precision, or raise a TypeError or ValueError whose message begins with `where`."""
    if not isinstance(precision, str):
        raise TypeError(f"{where}: expected a str, got {type(precision).__name__}")
    if precision not in get_args(Precision):
        raise ValueError(f"{where}: expected 'ieee' or 'tf32', got {precision!r}")
    return cast(Precision, precision)
