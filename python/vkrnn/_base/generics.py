"""Names of the typing module that older Pythons lack. They are needed by type checkers only.

`A` is the type of a call's arrays. Its default is NumPy's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["A", "Self"]

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Self, TypeVar

    A = TypeVar("A", default=npt.NDArray[Any])
else:  # so that annotations can be evaluated without the package typing_extensions
    from typing import TypeVar

    A = TypeVar("A")
    Self = TypeVar("Self")
