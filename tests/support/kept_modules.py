"""Modules of vkrnn.torch that keep packed weights, and the results that they must give."""

from __future__ import annotations

import copy
from typing import Any

import torch

import vkrnn.torch as ours

__all__ = ["a_module", "assert_same", "plain", "tensors", "warm"]


def a_module(kind: str, I: int = 24, H: int = 40, **options: Any) -> Any:
    """Return a module that keeps no weights yet."""
    return getattr(ours, kind)(I, H, **options)


def warm(module: Any, x: Any, hx: Any = None) -> Any:
    """Call a module until it keeps its weights."""
    for _ in range(3):
        results = module(x, hx)
    return results


def plain(module: Any, x: Any, hx: Any = None) -> Any:
    """Return the results of a copy of the module that keeps no weights yet."""
    return copy.deepcopy(module)(x, hx)


def tensors(results: Any) -> list[Any]:
    """Return the output and the last states."""
    output, last = results
    return [output, *(last if isinstance(last, tuple) else [last])]


def assert_same(got: Any, wanted: Any) -> None:
    """Compare two results bit for bit."""
    for one, other in zip(tensors(got), tensors(wanted), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
