"""How the modules behave under PyTorch's compilers and tracers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

__all__ = ["is_plain", "is_recorded_by_torch", "record_in_fx", "seen_by_others", "unseen_by_dynamo"]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_PLAIN = (Tensor, torch.nn.Parameter)
_PRE_DISPATCH = torch._C.DispatchKey.PreDispatch  # noqa: SLF001


def unseen_by_dynamo(function: _Function) -> _Function:
    """Keep torch.compile from compiling the frames of a function and of what it calls. Return the function.

    Functions that are compiled can still inline it. torch.compiler.disable would forbid that, import torch._dynamo, and
    add microseconds to each call.
    """
    dynamo = torch._C._dynamo.eval_frame  # noqa: SLF001
    if hasattr(dynamo, "set_code_exec_strategy"):  # PyTorch 2.5 does not have it
        skip = dynamo._FrameAction.SKIP  # noqa: SLF001
        dynamo.set_code_exec_strategy(function.__code__, dynamo._FrameExecStrategy(skip, skip))  # noqa: SLF001
    return function


def seen_by_others() -> bool:
    """Return whether a transform, a dispatch mode, forward-mode autograd or torch.jit.trace takes part in calls."""
    return bool(
        torch._C._is_tracing()  # noqa: SLF001 - torch.jit.is_tracing takes longer
        or torch._C._are_functorch_transforms_active()  # noqa: SLF001
        or torch._C._len_torch_dispatch_stack()  # noqa: SLF001
        or torch._C._dispatch_tls_is_dispatch_key_included(_PRE_DISPATCH)  # noqa: SLF001 - modes that are not on the stack
        or forward_ad._current_level >= 0  # noqa: SLF001
    )


def is_plain(tensors: Iterable[Tensor | None]) -> bool:
    """Return whether a call on these tensors needs no operator of PyTorch, which takes tens of microseconds.

    An operator is what tracers, transforms and modes see, and what subclasses of tensors and other devices are sent to.
    PyTorch also negates a tensor that `is_neg` only when it calls one.
    """
    if seen_by_others():
        return False
    for tensor in tensors:  # `all` would take a quarter longer
        if tensor is not None and (
            type(tensor) not in _PLAIN or not (tensor.is_cpu or tensor.is_cuda) or tensor.is_neg()
        ):
            return False
    return True


def is_recorded_by_torch() -> bool:
    """Return whether TorchScript's tracer records the call, or an ONNX exporter for which `_onnx` writes no nodes."""
    old = not hasattr(torch.onnx, "ops")
    return bool(torch.jit.is_tracing()) or (old and torch.compiler.is_compiling() and torch.onnx.is_in_onnx_export())


def record_in_fx(
    module: torch.nn.Module, proxy: torch.fx.Proxy, hx: Any, more: dict[str, Any] | None = None
) -> torch.fx.Proxy:
    """Record a call of the module in a graph of torch.fx, which does the same for PyTorch's own modules."""
    tracer: Any = proxy.tracer
    if tracer.root is module:
        raise NotImplementedError(
            f"[vkrnn.torch.{type(module).__name__}] torch.fx: expected a model that contains the module, "
            "got the module itself"
        )
    given = (proxy,) if hx is None else (proxy, hx)
    target = tracer.path_of_module(module)
    recorded: torch.fx.Proxy = tracer.create_proxy("call_module", target, given, more or {})
    return recorded
