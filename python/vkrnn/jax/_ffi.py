"""Calls in compiled programs through XLA's foreign function interface (FFI): no Python runs, and no GIL is needed.

The handler is in python/bindings/xla.cpp, which says what attributes a call has.
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
from vkrnn.jax._examples import compute_examples
from vkrnn.jax._host import HostCall, Kinds

__all__ = ["TARGET", "ffi_problem", "handles", "make_caller"]

TARGET = "vkrnn"
"""The name by which XLA's programs call vkrnn."""


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
    except (ImportError, AttributeError, RuntimeError, ValueError) as error:
        return f"JAX {jax.__version__}: {error}"
    return ""


_problem = _register()
if _problem:
    logging.getLogger("vkrnn").info("programs of JAX call back into Python: %s", _problem)


def ffi_problem() -> str:
    """Return why compiled programs call back into Python; empty if they call the CPU device directly.

    They call it through XLA's foreign function interface if vkrnn was built with the headers of jaxlib and if JAX
    accepts the result. Calls on Vulkan devices always go through Python.
    """
    return _problem


def handles(call: HostCall) -> bool:
    """Return whether the handler can make this call."""
    return not _problem and call.device.backend == "native"


def make_caller(call: HostCall, names: Sequence[str], results: Kinds, *, exported: bool) -> Callable[..., list[Any]]:
    """Return a function of JAX arrays, which have the `names`, that makes the call and returns the `results`.

    If `exported`, the call runs on a CPU device of the process that runs the program, else on the call's device.
    """
    attributes = {
        "cell": call.cell,
        "gradients": np.bool_(call.gradients),
        "arguments": ",".join(names),
        "results": ",".join(name for name, _ in results),
        "descriptor": {
            field.name: _attribute(getattr(call.descriptor, field.name)) for field in fields(call.descriptor)
        },
        "device": np.int64(0 if exported else _core.xla_device(call.device._open(f"[{call.function}]"))),
    }

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


def _attribute(value: float) -> np.generic:
    """Return an option with the type that the handler reads, whatever JAX's own default types are."""
    if isinstance(value, bool):
        return np.bool_(value)
    return np.int64(value) if isinstance(value, int) else np.float64(value)
