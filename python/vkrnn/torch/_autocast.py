"""The type that modules compute in within torch.autocast."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

__all__ = ["autocast_dtype", "in_dtype"]


def autocast_dtype(given: Any, module: Any) -> torch.dtype | None:
    """Return the type that a module computes in within torch.autocast; None outside of it.

    On a CUDA device it is autocast's own, as of PyTorch's modules. On the CPU it is the parameters', because a
    smaller type would make nothing faster.
    """
    data = given.data if isinstance(given, PackedSequence) else given
    if data.is_cuda:  # autocast leaves float64 as it is
        converts = torch.is_autocast_enabled("cuda") and data.is_floating_point() and data.dtype != torch.float64
        return torch.get_autocast_dtype("cuda") if converts else None
    # Read only if it is needed: a parametrized weight is computed each time.
    return module.weight_hh_l0.dtype if torch.is_autocast_enabled("cpu") else None


def in_dtype(given: Any, dtype: torch.dtype | None) -> Any:
    """Convert a tensor or a PackedSequence, unless there is none, it is of bool, or there is no type to convert to."""
    data = given.data if isinstance(given, PackedSequence) else given
    return given if dtype is None or data is None or data.dtype == torch.bool else given.to(dtype)
