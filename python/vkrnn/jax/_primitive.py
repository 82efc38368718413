"""The JAX primitive through which `vkrnn.jax` calls vkrnn.

Outside of `jax.jit` it calls vkrnn's functions with NumPy arrays, and nothing is compiled; arrays on a GPU make an
exception. A compiled program calls the device itself if `_ffi` can make that so, and otherwise calls back into Python.

`jax.pure_callback` would do for that, but it copies the callback's arguments into arrays of JAX. A large copy needs a
thread of XLA's pool, and the callback occupies one of these threads while it waits: if there is no other, it waits
forever. The callback of this primitive gets NumPy arrays and never waits for JAX.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from vkrnn import _core
from vkrnn.jax import _ffi
from vkrnn.jax._host import CallSpec, Kinds, compute

__all__ = ["bind", "make_primitive", "primitive", "vary_alike", "vary_like"]


def bind(call: CallSpec, given: Mapping[str, Any], results: Kinds) -> dict[str, Any]:
    """Return the `results` of a call with the arrays `given` by name."""
    found = primitive.bind(*given.values(), call=call, names=tuple(given), results=results)
    return {name: value for (name, _), value in zip(results, found, strict=True)}


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
    return _varying_of(jax.typeof(value))


def _varying_of(kind: Any) -> frozenset[str]:
    axes: frozenset[str] = kind.vma if hasattr(kind, "vma") else kind.mat.varying  # JAX 0.8 has the one, 0.10 the other
    return axes


def vary_like(value: Any, other: Any) -> Any:
    """Return a value that varies also over the axes of a `jax.shard_map` over which the `other` does."""
    return _vary(value, _varying(other))


def _vary(value: Any, axes: frozenset[str]) -> Any:
    missing = axes - _varying(value)
    return jax.lax.pcast(value, tuple(missing), to="varying") if missing else value


def _run_now(*arrays: Any, **parameters: Any) -> list[Any]:
    """Compute outside of `jax.jit`. Results stay on the device that the arguments are committed to, if it is one.

    With arrays on a GPU, the call becomes a program of its own if that computes there.
    """
    on_gpu = any(
        device.platform == "gpu" for array in arrays if isinstance(array, jax.Array) for device in array.devices()
    )
    if on_gpu and _ffi.handles(parameters["call"], "cuda"):
        return list(_compiled(primitive, **parameters)(*arrays))
    found = compute(*jax.device_get(arrays), **parameters)
    for word, wanted, is_it in (
        ("nan", jax.config.jax_debug_nans, np.isnan),
        ("inf", jax.config.jax_debug_infs, np.isinf),
    ):
        if wanted and any(is_it(array).any() for array in found):
            raise FloatingPointError(f"[vkrnn.jax.{parameters['call'].cell}] invalid value ({word}) encountered")
    committed = {device for array in arrays if _is_committed(array) for device in array.devices()}
    where = committed.pop() if len(committed) == 1 else None
    return [jax.device_put(array, where) for array in found]


@functools.lru_cache(maxsize=1024)
def _compiled(which: Primitive, **parameters: Any) -> Any:
    return jax.jit(functools.partial(which.bind, **parameters))


def _is_committed(array: Any) -> bool:
    return bool(getattr(array, "committed", getattr(array, "_committed", False)))  # JAX 0.4 has the second


def _types(*kinds: Any, names: Sequence[str], results: Kinds, **__: Any) -> list[Any]:
    """Return the kinds of results, which vary in a `jax.shard_map` as the arguments do."""
    if not hasattr(jax.lax, "pcast") or not any(map(_varying_of, kinds)):
        return [kind for _, kind in results]
    given = dict(zip(names, kinds, strict=False))
    # One that has as many axes, which its sharding has, too.
    alike = [(kind, given.get(name, given["source"])) for name, kind in results]
    return [like.update(shape=kind.shape, dtype=kind.dtype, weak_type=False) for kind, like in alike]


def _map(
    which: Primitive, arrays: Sequence[Any], axes: Sequence[int | None], *, results: Kinds, **more: Any
) -> tuple[Any, Any]:
    """Put an axis in front of all arrays: that of the examples, or one of size 1."""
    pairs = list(zip(arrays, axes, strict=True))
    (examples,) = {array.shape[axis] for array, axis in pairs if axis is not None}
    front = [jnp.expand_dims(array, 0) if axis is None else jnp.moveaxis(array, axis, 0) for array, axis in pairs]
    mapped = tuple((name, jax.core.ShapedArray((examples, *kind.shape), kind.dtype)) for name, kind in results)
    return which.bind(*front, results=mapped, **more), (0,) * len(mapped)


def _is_exported(context: Any) -> bool:
    return bool(getattr(context.module_context.lowering_parameters, "for_export", False))


def _call_back(context: Any, *operands: Any, **parameters: Any) -> Any:
    """Make the program call back into Python."""
    if _is_exported(context):
        call: CallSpec = parameters["call"]
        why = _ffi.ffi_problem() or f"its device is {call.device.name}"
        raise NotImplementedError(
            f"[vkrnn.jax.{call.cell}] jax.export: a program that calls vkrnn cannot be exported, because the call runs "
            f"in Python on the host ({why})"
        )
    callback = functools.partial(compute, **parameters)
    # The operation has no sharding: XLA gathers its operands, and each device makes the whole call.
    found, _, emitted = mlir.emit_python_callback(
        context, callback, None, list(operands), context.avals_in, context.avals_out, has_side_effect=False
    )
    callbacks = getattr(context.module_context, "host_callbacks", None)
    if callbacks and callbacks[-1] is emitted and callable(emitted):  # as in JAX 0.10; others show a traceback first
        callbacks[-1] = functools.partial(_core.call_without_traceback, emitted)
    return found


def _lower(context: Any, *operands: Any, call: CallSpec, **parameters: Any) -> Any:
    """Make the program call the device, if the handlers of its platforms can.

    This is one rule for all platforms, because a program for several ones has the same call on each.
    """
    platforms = tuple(getattr(context, "platforms", None) or context.module_context.platforms)
    portable = _is_exported(context) or len(platforms) > 1
    if not all(_ffi.handles(call, platform, exported=portable) for platform in platforms):
        return _call_back(context, *operands, call=call, **parameters)
    anywhere = portable or (platforms == ("cuda",) and not call.is_device_named)
    if not anywhere:
        context.module_context.add_keepalive(call.device)  # the handler has weak references only
    caller = _ffi.make_caller(call, **parameters, anywhere=anywhere)
    return mlir.lower_fun(caller, multiple_results=True)(context, *operands)


def make_primitive(name: str, run_now: Callable[..., Any] | None = None) -> Primitive:
    """Make a primitive whose first operands have `names` and whose results are `results`.

    `run_now` computes it outside of `jax.jit`; without it, each such call is a program of its own.
    """
    made = Primitive(name)
    made.multiple_results = True
    made.def_impl(run_now or (lambda *arrays, **parameters: _compiled(made, **parameters)(*arrays)))
    made.def_abstract_eval(_types)
    batching.primitive_batchers[made] = functools.partial(_map, made)
    return made


primitive = make_primitive("vkrnn", _run_now)
mlir.register_lowering(primitive, _lower)
# On TPUs each callback needs a channel of its own, as that of jax.pure_callback does. JAX 0.4 does not cache lowerings.
_uncached = {"cacheable": False} if "cacheable" in inspect.signature(mlir.register_lowering).parameters else {}
mlir.register_lowering(primitive, _call_back, platform="tpu", **_uncached)
