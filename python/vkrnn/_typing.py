"""Types in the annotations of the public functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vkrnn._foreign import Foreign
from vkrnn.arrays import Array

__all__ = ["Integers", "Out", "Tensor"]

Tensor: TypeAlias = Foreign | Array
"""float32, float64, float16 or bfloat16 (in NumPy a type of the package ml_dtypes)."""

Integers: TypeAlias = npt.NDArray[np.integer[Any]] | Foreign | Sequence[int]

_Own: TypeAlias = npt.NDArray[Any] | Array
Out: TypeAlias = _Own | Sequence[_Own | None]
