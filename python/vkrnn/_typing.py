"""Types in the annotations of the public functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from vkrnn._foreign import Foreign
from vkrnn._generics import A

__all__ = ["Integers", "Out", "Tensor"]

_Itself_co = TypeVar("_Itself_co", covariant=True)


class _Resident(Protocol[_Itself_co]):
    """What tells a `vkrnn.Array` from all others, and names its type: `_Itself_co` of an Array is Array."""

    @property
    def host_visible(self) -> bool: ...
    def __getitem__(self, index: slice, /) -> _Itself_co: ...


Tensor: TypeAlias = Foreign | _Resident[A]
"""float32, float64, float16 or bfloat16 (in NumPy a type of the package ml_dtypes).

One `vkrnn.Array` among a call's arguments is enough for `A`, and with it the results, to be `vkrnn.Array`. No other
argument says what `A` is. Without one it is NumPy's arrays, its default.
"""

Integers: TypeAlias = npt.NDArray[np.integer[Any]] | Foreign | Sequence[int]

_Own: TypeAlias = npt.NDArray[Any] | _Resident[A]
Out: TypeAlias = _Own[A] | Sequence[_Own[A] | None]
