"""What the annotations of the public functions say."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "Integers"]

Array: TypeAlias = npt.NDArray[Any]
"""float32, float64, float16 or bfloat16 (the latter a type of the package ml_dtypes)."""

Integers: TypeAlias = npt.NDArray[np.integer[Any]]
