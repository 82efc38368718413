"""Conversion of other libraries' arrays to NumPy arrays."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from vkrnn import _core
from vkrnn._base.packages import missing
from vkrnn._interop.dlpack import BFLOAT, HOST, UNSIGNED, device_of, tensor_of

__all__ = ["Foreign", "as_numpy", "as_numpy_integers", "bfloat16", "refuse_differentiated"]


class _NoneOfVkrnn(Protocol):
    # Every object has this method, but `vkrnn.Array` tells type checkers that it has none.
    def __sizeof__(self) -> int: ...


class _SupportsDLPack(_NoneOfVkrnn, Protocol):
    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...
    def __dlpack_device__(self) -> Any: ...


class _SupportsArray(_NoneOfVkrnn, Protocol):
    def __array__(self, *args: Any, **kwargs: Any) -> npt.NDArray[Any]: ...


Foreign: TypeAlias = npt.NDArray[Any] | _SupportsDLPack | _SupportsArray
"""A NumPy array, or anything that `as_numpy` converts to one; not a `vkrnn.Array`."""


class _Exported:
    """Passes a DLPack capsule to NumPy."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def as_numpy(value: Any, where: str) -> Any:
    """Return an object with ``__dlpack__`` or ``__array__`` as a NumPy array in the same memory, and others unchanged.

    Raises
    ------
    TypeError
        If the object has a mask, is not in host memory, cannot be shared, is no array, or takes part in gradients of
        PyTorch or JAX. The message begins with `where`.
    ImportError
        If the object is of bfloat16, and the package ml_dtypes is not installed.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{where} expected an array without a mask, got a MaskedArray; see numpy.ma.filled")
    if isinstance(value, np.ndarray):
        return np.asarray(value)  # drops a subclass's overrides, so that the checked array is the one used
    if isinstance(value, (np.generic, _core.Array)):
        return value
    refuse_differentiated(value, where)
    if hasattr(value, "__dlpack__"):
        return _from_dlpack(value, where)
    if not hasattr(value, "__array__"):
        return value
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{where} expected an array, got a {type(value).__name__}: {error}") from error


def as_numpy_integers(value: Any, where: str) -> Any:
    """Return `as_numpy` of an argument that may also be a list of integers."""
    if not isinstance(value, (list, tuple)):
        return as_numpy(value, where)
    try:
        return np.asarray(value)
    except ValueError:
        raise TypeError(f"{where} expected integers, got a nested {type(value).__name__}") from None


def _from_dlpack(value: Any, where: str) -> npt.NDArray[Any]:
    kind = type(value).__name__
    try:
        on_host = device_of(value)[0] in HOST
    except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(f"{where} expected an array that can be shared, got a {kind}: {error}") from error
    if not on_host:
        raise TypeError(f"{where} expected CPU memory, got a {kind} on another device; copy it to the CPU first")
    try:
        capsule = value.__dlpack__()
        tensor = tensor_of(capsule)
        is_bfloat16 = (tensor.code, tensor.bits) == (BFLOAT, 16)
        if is_bfloat16:
            tensor.code = UNSIGNED  # which NumPy supports
        array: npt.NDArray[Any] = np.from_dlpack(_Exported(capsule))
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(f"{where} expected an array that can be shared, got a {kind}: {error}") from error
    return array.view(bfloat16(where)) if is_bfloat16 else array


def bfloat16(where: str) -> np.dtype[Any]:
    """Return NumPy's dtype for bfloat16. Raises ImportError without ml_dtypes; the message begins with `where`."""
    try:
        return _bfloat16()
    except ImportError as error:
        raise missing(f"{where} bfloat16", error, "ml_dtypes") from None


@functools.cache
def _bfloat16() -> np.dtype[Any]:
    dtype: np.dtype[Any] = np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    return dtype


def refuse_differentiated(value: Any, where: str) -> None:
    """Raise TypeError for arrays whose library would compute gradients, because it cannot record a call here."""
    kind = type(value).__name__
    torch, jax = sys.modules.get("torch"), sys.modules.get("jax")
    if torch is not None and isinstance(value, torch.Tensor) and value.requires_grad:
        advice = "the modules of vkrnn.torch compute its gradients; tensor.detach() gives them up"
        raise TypeError(f"{where} expected an array, got a {kind} that requires gradients: {advice}")
    if isinstance(value, getattr(getattr(jax, "core", None), "Tracer", ())):
        advice = "within jax.jit, jax.grad and jax.vmap call the functions of vkrnn.jax"
        raise TypeError(f"{where} expected an array, got a tracer of JAX ({kind}): {advice}")


_core.provide("as_numpy", as_numpy)
