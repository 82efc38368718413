"""Operators and autograd functions within the levels of torch.func, which PyTorch's dispatcher handles one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd import forward_ad

from vkrnn.torch._tracing import unseen_by_dynamo

__all__ = ["apply_at_level", "at_lower_levels", "differentiable", "library", "requires_gradients"]

library = torch.library.Library("vkrnn", "FRAGMENT")


def _below_autograd(operator: Any, inputs: Sequence[Any]) -> Any:
    with torch._C._AutoDispatchBelowAutograd():  # noqa: SLF001 - as torch.library does it
        return operator(*inputs)


def at_lower_levels(operator: Any, inputs: Sequence[Any]) -> Any:
    """Compute from within Function.forward, with derivatives on again for lower levels of torch.func."""
    if not torch._C._are_functorch_transforms_active():  # noqa: SLF001
        return _below_autograd(operator, inputs)
    with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):  # noqa: FBT003, SLF001 - as torch.func does it
        return _below_autograd(operator, inputs)


def apply_at_level(function: Any, *inputs: Any) -> Any:
    """Apply an autograd function from within an operator, for the level which the dispatcher handles."""
    with enable_single_level_autograd_function():
        return super(torch.autograd.Function, function).apply(*inputs)


def requires_gradients(inputs: Sequence[Any]) -> bool:
    """Return whether a tensor of an operator's arguments requires gradients."""
    return any(
        isinstance(value, Tensor) and value.requires_grad
        for one in inputs
        for value in (one if isinstance(one, (list, tuple)) else (one,))
    )


def differentiable(operator: Any, apply: Callable[..., Any], loop: Callable[..., Any]) -> Callable[..., Any]:
    """Return what PyTorch's dispatcher calls before the operator itself where autograd is on.

    In a level of forward mode, that is the `loop`, whose operations PyTorch differentiates in any mode.
    """

    @unseen_by_dynamo
    def compute(*inputs: Any) -> Any:
        if forward_ad._current_level >= 0:  # noqa: SLF001
            return loop(*inputs)
        if not (torch.is_grad_enabled() and requires_gradients(inputs)):
            return _below_autograd(operator, inputs)
        if not torch._C._are_functorch_transforms_active():  # noqa: SLF001
            return apply(*inputs)
        with enable_single_level_autograd_function():
            return apply(*inputs)

    return compute
