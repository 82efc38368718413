"""Symbolic sizes of `jax.export`: calls are checked with numbers in their place."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["StandIns"]

_FIRST = 9_973  # a number that messages hardly have for another reason


class StandIns:
    """Numbers in place of the symbolic sizes of `arrays`: the same one wherever a size is the same."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        sizes = [size for array in arrays.values() for size in array.shape]
        symbolic = dict.fromkeys(size for size in sizes if not isinstance(size, int))
        unused = (number for number in itertools.count(_FIRST) if number not in sizes)
        self._numbers = dict(zip(symbolic, unused, strict=False))
        self._symbols = {number: size for size, number in self._numbers.items()}

    def __bool__(self) -> bool:
        """Return whether there are symbolic sizes."""
        return bool(self._numbers)

    def numbers(self, shape: tuple[Any, ...]) -> tuple[int, ...]:
        """Return a shape without symbolic sizes."""
        return tuple(self._numbers.get(size, size) for size in shape)

    def symbols(self, shape: tuple[int, ...]) -> tuple[Any, ...]:
        """Return a shape with symbolic sizes again."""
        return tuple(self._symbols.get(size, size) for size in shape)

    @contextlib.contextmanager
    def in_messages(self) -> Iterator[None]:
        """Put symbolic sizes into the messages of the errors that the block raises."""
        try:
            yield
        except (TypeError, ValueError, NotImplementedError) as error:
            if not self:
                raise
            message = re.sub(r"\d+", lambda number: str(self._symbols.get(int(number[0]), number[0])), str(error))
            raise type(error)(message) from None
