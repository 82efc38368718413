"""Types in the annotations of the public functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from vkrnn._base.generics import A
from vkrnn._interop.foreign import Foreign

__all__ = ["Integers", "Out", "Tensor"]

_Itself_co = TypeVar("_Itself_co", covariant=True)


class _Resident(Protocol[_Itself_co]):
    """What distinguishes a `vkrnn.Array` from other arrays. For an Array, `_Itself_co` is Array."""

    @property
    def host_visible(self) -> bool: ...
    def __getitem__(self, index: slice, /) -> _Itself_co: ...


Tensor: TypeAlias = Foreign | _Resident[A]
"""An array of float32, float64, float16 or bfloat16 (in NumPy from the package ml_dtypes).

If any argument of a call is a `vkrnn.Array`, `A` is `vkrnn.Array`, and so are the results. Otherwise `A` is its
default, NumPy arrays.
"""

Integers: TypeAlias = npt.NDArray[np.integer[Any]] | Foreign | Sequence[int]

_Own: TypeAlias = npt.NDArray[Any] | _Resident[A]
Out: TypeAlias = _Own[A] | Sequence[_Own[A] | None]
