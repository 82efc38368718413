"""Names of the typing module that not every Python has: what type checkers need of them, and nothing at run time.

`A` stands for the arrays of a call's results: NumPy's where no other kind can be told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["A", "Self"]

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Self, TypeVar

    A = TypeVar("A", default=npt.NDArray[Any])
else:  # so that annotations with these names can be evaluated without the package typing_extensions
    from typing import TypeVar

    A = TypeVar("A")
    Self = TypeVar("Self")
