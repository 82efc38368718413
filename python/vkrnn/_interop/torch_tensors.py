"""Tensors on the CPU as NumPy arrays and back, in the same memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vkrnn._interop.foreign import bfloat16

__all__ = ["to_array", "to_tensor"]


def to_array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Return a view of the tensor."""
    if tensor.dtype != torch.bfloat16:
        array: npt.NDArray[Any] = tensor.detach().numpy()
        return array
    bits: npt.NDArray[Any] = tensor.detach().view(torch.int16).numpy()
    return bits.view(bfloat16("[vkrnn.torch]"))


def to_tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    """Return a tensor that shares the array's memory, which must be writeable."""
    if (
        array.itemsize == 2 and array.dtype.name == "bfloat16"
    ):  # checked first, because NumPy takes microseconds for the name
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
