"""What the annotations of the public functions say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vkrnn.arrays import Array

__all__ = ["Integers", "Out", "Tensor"]

Tensor: TypeAlias = npt.NDArray[Any] | Array
"""float32, float64, float16 or bfloat16 (the latter a type of the package ml_dtypes)."""

Integers: TypeAlias = npt.NDArray[np.integer[Any]]

Out: TypeAlias = Tensor | Sequence[Tensor | None]
