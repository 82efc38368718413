"""Calls as `jax.lax.scan` over the time steps, for derivatives that vkrnn has no kernels for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from vkrnn._ops import equations
from vkrnn.jax._host import CallSpec, Kinds
from vkrnn.jax._primitive import vary_like
from vkrnn.results import STATES

__all__ = ["by_scan", "over_examples"]


class _Jax:
    """The operations of `vkrnn._ops.equations.Library`."""

    tanh, sigmoid, relu = staticmethod(jnp.tanh), staticmethod(jax.nn.sigmoid), staticmethod(jax.nn.relu)
    log_sigmoid, exp = staticmethod(jax.nn.log_sigmoid), staticmethod(jnp.exp)
    einsum = staticmethod(jnp.einsum)

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        return jnp.where(condition, x, y)

    def clamp(self, x: Any, least: float | None, most: float | None) -> Any:
        return jnp.clip(x, least, most)

    def concatenate(self, arrays: Sequence[Any], axis: int) -> Any:
        return jnp.concatenate(list(arrays), axis)

    def broadcast(self, x: Any, shape: tuple[Any, ...]) -> Any:
        return jnp.broadcast_to(x, shape)

    def flip(self, x: Any) -> Any:
        return jnp.flip(x, 0)

    def zeros(self, shape: tuple[Any, ...], like: Any) -> Any:
        return vary_like(jnp.zeros(shape, like.dtype), like)

    def wide(self, x: Any) -> Any:
        return x.astype(jnp.float32) if x.dtype.itemsize == 2 else x

    def narrow(self, x: Any, like: Any) -> Any:
        return x.astype(like.dtype)

    def factor(self, reset: Any, like: Any) -> Any:
        return 1 - reset.astype(like.dtype) if reset.dtype == bool else reset.astype(like.dtype)

    def count(self, T: Any, like: Any) -> Any:
        return jnp.arange(T, dtype=like.dtype)

    def take(self, x: Any, steps: Any) -> Any:
        return jnp.take_along_axis(x, steps.reshape(*steps.shape, *[1] * (x.ndim - 2)), 0)

    def passed_on(self, h: Any, limit: float) -> Any:
        return _passed_on.bind(h, limit=limit)

    def scan(self, step: Callable[[Any, Any], Any], carry: Any, rows: Any) -> Any:
        return jax.lax.scan(step, carry, rows)


_library = _Jax()


def _clipped(gradient: Any, _: Any, *, limit: float) -> list[Any]:
    # That of jnp.clip(gradient, 0, 0) is not zero in JAX where the gradient is.
    return [jnp.clip(gradient, -limit, limit) if limit else jnp.zeros_like(gradient)]


# A function that is linear, but whose transpose is not: reverse mode clips at every level, and forward mode does not.
_passed_on = Primitive("vkrnn_passed_on")
_passed_on.def_impl(lambda h, **_: h)
_passed_on.def_abstract_eval(lambda h, **_: h)
ad.deflinear2(_passed_on, _clipped)
batching.defvectorized(_passed_on)
mlir.register_lowering(_passed_on, lambda _context, h, **_: [h])


def by_scan(call: CallSpec, names: Sequence[str], results: Kinds, *arrays: Any) -> list[Any]:
    """Return the results of the primitive's call. z_state, which has no derivatives, is zeros."""
    examples = arrays[list(names).index("source")].ndim - 3  # axes in front of all arrays

    def one(*own: Any) -> list[Any]:
        given = dict(zip(names, own, strict=True))
        found = _gradients(call, given, results) if call.gradients else _forward(call, given)
        return [
            found[name] if name in found else jnp.zeros(kind.shape[examples:], kind.dtype) for name, kind in results
        ]

    return over_examples(one, examples, arrays)


def over_examples(function: Callable[..., list[Any]], axes: int, arrays: Sequence[Any]) -> list[Any]:
    """Call a function for each example: of the first `axes` of the arrays, which may have a size of 1 instead."""
    if axes == 0:
        return function(*arrays)
    is_own = [array.shape[0] != 1 for array in arrays]
    if not any(is_own):
        is_own = [True] * len(arrays)
    own = [array if mapped else array[0] for array, mapped in zip(arrays, is_own, strict=True)]
    along = [0 if mapped else None for mapped in is_own]
    found: list[Any] = jax.vmap(lambda *each: over_examples(function, axes - 1, each), along)(*own)
    return found


def _forward(call: CallSpec, given: Mapping[str, Any]) -> dict[str, Any]:
    return equations.run(_library, call.cell, call.descriptor, given)


def _gradients(call: CallSpec, given: Mapping[str, Any], results: Kinds) -> dict[str, Any]:
    """Differentiate the loop. What the forward pass has kept is computed again."""
    wanted = {name: given[name] for name, _ in results}
    above = {"output": given.get("source_gradient")}
    above |= {state.sequence: given.get(state.gradient) for state in STATES[1:]}
    above = {name: gradient for name, gradient in above.items() if gradient is not None}

    def loop(own: dict[str, Any]) -> dict[str, Any]:
        found = _forward(call, {**given, **own})
        return {name: found[name] for name in above}

    _, pull = jax.vjp(loop, wanted)
    (found,) = pull(above)
    return dict(found)
