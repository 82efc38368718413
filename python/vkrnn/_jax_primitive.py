"""The JAX primitive through which `vkrnn.jax` calls vkrnn on the host.

`jax.pure_callback` would do, but it copies the callback's arguments into arrays of JAX. A large copy needs a thread of
XLA's pool, and the callback occupies one of these threads while it waits: if there is no other, it waits forever. The
callback of this primitive gets NumPy arrays and never waits for JAX. Outside of `jax.jit` nothing is compiled at all.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from vkrnn._calls import run
from vkrnn._last_cells import last_cells
from vkrnn.devices import Device
from vkrnn.results import Results

__all__ = ["HostCall", "on_the_host", "vary_alike"]

Array = npt.NDArray[Any]
_Results: TypeAlias = tuple[tuple[str, Any], ...]  # names, and shapes with dtypes

# The axis of the batch rows, counted from the end, in the arguments that can differ between the examples of a vmap.
_ROWS = {"source": -2, "init_state": -2, "init_cell": -2, "lengths": -1}


@dataclass(frozen=True)
class HostCall:
    """A call of vkrnn without its arrays: JAX compares and hashes it."""

    function: str
    cell: str
    descriptor: Any
    device: Device


def on_the_host(call: HostCall, given: Mapping[str, Any], like: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results of a call with the arrays `given`; they have names, shapes and dtypes `like` these."""
    results = tuple((name, jax.core.ShapedArray(value.shape, value.dtype)) for name, value in like.items())
    found = _primitive.bind(*given.values(), call=call, names=tuple(given), results=results)
    varying = frozenset().union(*map(_varying, given.values()))
    return {name: _vary(value, varying) for name, value in zip(like, found, strict=True)}


def vary_alike(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments of a call in a `jax.shard_map`, all of which vary over the axes over which one does.

    Each device then has gradients of its own. JAX adds them up where an argument did not vary before.
    """
    varying = frozenset().union(*map(_varying, given.values()))
    return {name: _vary(value, varying) for name, value in given.items()}


def _varying(value: Any) -> frozenset[str]:
    """Return the axes of a `jax.shard_map` over which a value varies; none if this JAX cannot say so."""
    if not isinstance(value, jax.core.Tracer) or not hasattr(jax.lax, "pcast"):
        return frozenset()
    kind = jax.typeof(value)
    axes: frozenset[str] = kind.vma if hasattr(kind, "vma") else kind.mat.varying  # JAX 0.8 has the one, 0.10 the other
    return axes


def _vary(value: Any, axes: frozenset[str]) -> Any:
    missing = axes - _varying(value)
    return jax.lax.pcast(value, tuple(missing), to="varying") if missing else value


def _run_now(*arrays: Any, **parameters: Any) -> list[Any]:
    """Compute outside of `jax.jit`. Results stay on the device that the arguments are committed to, if it is one."""
    found = _compute(*jax.device_get(arrays), **parameters)
    for word, wanted, is_it in (
        ("nan", jax.config.jax_debug_nans, np.isnan),
        ("inf", jax.config.jax_debug_infs, np.isinf),
    ):
        if wanted and any(is_it(array).any() for array in found):
            raise FloatingPointError(f"[vkrnn.jax.{parameters['call'].cell}] invalid value ({word}) encountered")
    committed = {device for array in arrays if _is_committed(array) for device in array.devices()}
    where = committed.pop() if len(committed) == 1 else None
    return [jax.device_put(array, where) for array in found]


def _is_committed(array: Any) -> bool:
    return bool(getattr(array, "committed", getattr(array, "_committed", False)))  # JAX 0.4 has the second


def _types(*_: Any, results: _Results, **__: Any) -> list[Any]:
    return [kind for _, kind in results]


def _map(arrays: Sequence[Any], axes: Sequence[int | None], *, results: _Results, **more: Any) -> tuple[Any, Any]:
    """Put an axis in front of all arrays: that of the examples, or one of size 1."""
    pairs = list(zip(arrays, axes, strict=True))
    (examples,) = {array.shape[axis] for array, axis in pairs if axis is not None}
    front = [jnp.expand_dims(array, 0) if axis is None else jnp.moveaxis(array, axis, 0) for array, axis in pairs]
    mapped = tuple((name, jax.core.ShapedArray((examples, *kind.shape), kind.dtype)) for name, kind in results)
    return _primitive.bind(*front, results=mapped, **more), (0,) * len(mapped)


def _refuse(_primals: Any, _tangents: Any, *, call: HostCall, **_: Any) -> Any:
    raise NotImplementedError(f"[vkrnn.jax.{call.cell}] gradients of gradients: vkrnn has first derivatives only")


def _lower(context: Any, *operands: Any, **parameters: Any) -> Any:
    if getattr(context.module_context.lowering_parameters, "for_export", False):
        raise NotImplementedError(
            f"[vkrnn.jax.{parameters['call'].cell}] jax.export: a program that calls vkrnn cannot be exported, because "
            "the call runs in Python on the host"
        )
    compute = functools.partial(_compute, **parameters)
    # The operation has no sharding: XLA gathers its operands, and each device makes the whole call.
    found, _, _ = mlir.emit_python_callback(
        context, compute, None, list(operands), context.avals_in, context.avals_out, has_side_effect=False
    )
    return found


_primitive = Primitive("vkrnn")
_primitive.multiple_results = True
_primitive.def_impl(_run_now)
_primitive.def_abstract_eval(_types)
batching.primitive_batchers[_primitive] = _map
ad.primitive_jvps[_primitive] = _refuse
# On TPUs each callback needs a channel of its own, as that of jax.pure_callback does. JAX 0.4 does not cache lowerings.
_uncached = {"cacheable": False} if "cacheable" in inspect.signature(mlir.register_lowering).parameters else {}
mlir.register_lowering(_primitive, _lower, **_uncached)


def _compute(*arrays: Array, call: HostCall, names: Sequence[str], results: _Results) -> tuple[Array, ...]:
    if any(array.size == 0 for array in arrays):  # no batch rows, or a vmap over no examples
        return tuple(np.zeros(kind.shape, kind.dtype) for _, kind in results)
    found = _compute_all(call, dict(zip(names, map(np.asarray, arrays), strict=True)))
    return tuple(found[name] for name, _ in results)


def _compute_all(call: HostCall, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Compute a call for each example of the vmaps around it: each array has an axis in front for each vmap, or 1."""
    axes = arrays["source"].ndim - 3
    if axes == 0:
        return _compute_one(call, arrays)
    examples = np.broadcast_shapes(*(array.shape[:axes] for array in arrays.values()))
    full = {name: np.broadcast_to(array, examples + array.shape[axes:]) for name, array in arrays.items()}
    shared = {name: array for name, array in arrays.items() if name not in _ROWS}
    together = call.function == call.cell and "mask" not in arrays  # gradients of weights are wanted for each example
    if together and all(array.shape[:axes] == (1,) * axes for array in shared.values()):
        merged = {name: _merge(full[name], axes, row) for name, row in _ROWS.items() if name in full}
        found = _compute_one(call, merged | {name: array[(0,) * axes] for name, array in shared.items()})
        return {name: _split(array, examples) for name, array in found.items()}
    each = [_compute_one(call, {name: array[at] for name, array in full.items()}) for at in np.ndindex(examples)]
    stacked = {name: np.stack([found[name] for found in each]) for name in each[0]}
    return {name: array.reshape(examples + array.shape[1:]) for name, array in stacked.items()}


def _merge(array: Array, axes: int, row: int) -> Array:
    """Return an array with the first `axes` made part of the axis of its batch rows."""
    row += array.ndim
    beside = np.moveaxis(array, range(axes), range(row - axes, row))
    return beside.reshape(*beside.shape[: row - axes], -1, *beside.shape[row + 1 :])


def _split(array: Array, examples: tuple[int, ...]) -> Array:
    """Return a result [T, rows, channels] of merged rows with the axes of the `examples` in front."""
    T, rows, channels = array.shape
    apart = array.reshape(T, *examples, rows // int(np.prod(examples)), channels)
    return np.moveaxis(apart, range(1, 1 + len(examples)), range(len(examples)))


def _compute_one(call: HostCall, given: Mapping[str, Array]) -> dict[str, Array]:
    arguments = {**given, "descriptor": call.descriptor, "device": call.device}
    if "cell_gradient" in arguments:
        directions = 2 if call.descriptor.bidirectional else 1
        arguments["cell_gradient"] = last_cells(
            arguments["cell_gradient"], directions, arguments.get("lengths"), "[vkrnn.jax.lstm]"
        )
    return run(Results, call.function, arguments)._asdict()
