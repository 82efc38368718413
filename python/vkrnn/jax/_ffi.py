"""Calls in compiled programs through XLA's foreign function interface (FFI): no Python runs, and no GIL is needed.

The handlers are in python/bindings/xla.cpp, which says what attributes a call has.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxlib import xla_client

from vkrnn import _core
from vkrnn._base.warnings import warn_caller
from vkrnn._ops.cuda import cuda_device
from vkrnn.jax._examples import compute_examples
from vkrnn.jax._host import CallSpec, Kinds

__all__ = ["TARGET", "ffi_problem", "handles", "make_caller"]

TARGET = "vkrnn"
"""The name by which XLA's programs call vkrnn."""


def _opened_cuda(ordinal: int, where: str) -> _core.Device:
    """Return the device that calls share on a GPU; a program's first call there asks for it."""
    return cuda_device(ordinal, where)._open(where)


def _register() -> str:
    handler = _core.xla_handler()
    if handler is None:
        return "vkrnn was built without XLA's headers"
    try:
        importlib.import_module("jax.ffi")  # which older versions of JAX lack
        # JAX would wait with this until its CPU backend starts, which then failed if XLA refused the handler's version.
        client: Any = xla_client  # whose private names depend on the version
        client.register_custom_call_handler("cpu", client._xla.register_custom_call_target)  # noqa: SLF001
        jax.ffi.register_ffi_target(TARGET, handler, platform="cpu")
        # This one waits for the CUDA backend, if there is one. XLA has accepted the other one of the same version.
        jax.ffi.register_ffi_target(TARGET, _core.xla_cuda_handler(), platform="CUDA")
    except (ImportError, AttributeError, RuntimeError, ValueError) as error:
        return f"JAX {jax.__version__}: {error}"
    return ""


_core.provide("opened_cuda", _opened_cuda)
_warned = False  # whether the user knows that programs call back into Python
_problem = _register()
if _problem:
    logging.getLogger("vkrnn").info("programs of JAX call back into Python: %s", _problem)


def ffi_problem() -> str:
    """Return why compiled programs call back into Python; empty if they call CPU and CUDA devices directly.

    They call them through XLA's foreign function interface if vkrnn was built with the headers of jaxlib and if JAX
    accepts the result. Calls on Vulkan devices always go through Python.
    """
    return _problem


def handles(call: CallSpec, platform: str, *, exported: bool = False) -> bool:
    """Return whether a program for a platform, such as "cpu" or "cuda", calls the handler.

    An exported program runs on devices of another process, where its arrays are, unless its calls name a device.
    """
    backend = {"cpu": "native", "cuda": "cuda"}.get(platform)
    if backend is None:
        return False
    if call.is_device_named or (platform == "cpu" and not exported):
        fits = call.device.backend == backend
    else:
        fits = exported or any(profile.backend == backend for profile in _core.list_devices())
    if fits and _problem:
        _warn_once()
    return fits and not _problem


def _warn_once() -> None:
    """Warn, the first time in a process, that a program takes the slower way."""
    global _warned  # noqa: PLW0603
    if _warned:
        return
    _warned = True
    warn_caller(
        f"[vkrnn.jax] compiled programs call back into Python, which takes longer: {_problem}; docs/jax.md says how to "
        "build vkrnn so that they call it directly",
        RuntimeWarning,
        through=("jax.", "contextlib"),
    )


def make_caller(call: CallSpec, names: Sequence[str], results: Kinds, *, anywhere: bool) -> Callable[..., list[Any]]:
    """Return a function of JAX arrays, which have the `names`, that makes the call and returns the `results`.

    If `anywhere`, the call runs where the program's arrays are in the process that runs it: on a CPU device, or on the
    shared device of a GPU. Otherwise it runs on the call's device.
    """
    attributes: dict[str, Any] = {
        "cell": call.cell,
        "gradients": np.bool_(call.gradients),
        "arguments": ",".join(names),
        "results": ",".join(name for name, _ in results),
        "descriptor": {
            field.name: _attribute(value)
            for field in fields(call.descriptor)
            if (value := getattr(call.descriptor, field.name)) is not None
        },
        "device": np.int64(0 if anywhere else _core.xla_device(call.device._open(f"[{call.function}]"))),
    }
    if call.float32 == "tf32":
        attributes["float32"] = call.float32

    def caller(*arrays: Any) -> list[Any]:
        given = dict(zip(names, arrays, strict=True))
        axes = given["source"].ndim - 3  # of vmaps

        def one(arrays: Mapping[str, Any]) -> dict[str, Any]:
            N = arrays["source"].shape[1]  # of all examples, if these are computed at once
            kinds = [
                jax.ShapeDtypeStruct(
                    kind.shape[axes:] if call.gradients else (kind.shape[axes], N, kind.shape[-1]), kind.dtype
                )
                for _, kind in results
            ]
            found = jax.ffi.ffi_call(TARGET, kinds)(*(arrays[name] for name in names), **attributes)
            return {name: array for (name, _), array in zip(results, found, strict=True)}

        found = compute_examples(one, given, as_rows=not call.gradients, loop=jax.lax.map, numpy=jnp)
        return [found[name] for name, _ in results]

    return caller


def _attribute(value: float | str) -> np.generic | str:
    """Return an option with the type that the handler reads, whatever JAX's own default types are."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return np.bool_(value)
    return np.int64(value) if isinstance(value, int) else np.float64(value)
