"""Forward calls with their derivatives, in forward and in reverse mode and in any nesting of the two.

The tangents of a call's results are a primitive of their own, which is linear in the tangents of the arguments. Forward
mode computes them by a `jax.lax.scan`. Reverse mode transposes the primitive instead: that calls vkrnn's gradients.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import ad, mlir

from vkrnn import _core
from vkrnn._ops.calls import saved_results
from vkrnn.jax._checks import kinds_of_results
from vkrnn.jax._host import CallSpec, Kinds
from vkrnn.jax._primitive import bind, make_primitive, primitive, vary_alike
from vkrnn.jax._scans import by_scan, over_examples
from vkrnn.results import STATES

__all__ = ["forward"]

Names = tuple[str, ...]

_CELLS = {cell.name: cell for cell in _core.cells()}
_GRADIENT_NAMES = {state.sequence: state.gradient for state in STATES} | {"output": "source_gradient"}


def forward(call: CallSpec, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results of a forward call by name."""
    return bind(call, vary_alike(given), kinds_of_results(call, given))


def _moves(primal: Any, tangent: Any) -> bool:
    return not isinstance(tangent, ad.Zero) and bool(jnp.issubdtype(primal.dtype, jnp.floating))


def _zero(primal: Any) -> ad.Zero:
    if hasattr(jax, "typeof"):
        return ad.Zero(jax.typeof(primal).to_tangent_aval())
    return ad.Zero.from_primal_value(primal)  # JAX 0.4


def _move_results(
    primals: Sequence[Any], tangents: Sequence[Any], *, call: CallSpec, names: Names, results: Kinds
) -> tuple[Any, Any]:
    """Return the results of a call, and their tangents."""
    given = dict(zip(names, primals, strict=True))
    if call.gradients:
        found = bind(call, given, results)
        return list(found.values()), _push(lambda *arrays: by_scan(call, names, results, *arrays), primals, tangents)
    pairs = zip(names, primals, tangents, strict=True)
    moved = {name: tangent for name, primal, tangent in pairs if _moves(primal, tangent)}
    cell = _CELLS[call.cell]
    for name in moved:
        if name not in cell.gradient_order:
            raise NotImplementedError(f"[vkrnn.jax.{call.cell}] {name}: vkrnn computes no gradient with respect to it")
    if not moved:
        found = bind(call, given, results)
        return list(found.values()), list(map(_zero, found.values()))
    found = _with_training(call, given, results)
    kept = {name: found[result] for name, result in saved_results(cell, given).items()}
    pushed = _bind_tangents(call, given, kept, moved, results)
    # What gradients need of a call has no tangents, because the derivatives of gradients compute it again.
    return [found[name] for name, _ in results], [pushed.get(name, _zero(found[name])) for name, _ in results]


def _with_training(call: CallSpec, given: Mapping[str, Any], results: Kinds) -> dict[str, Any]:
    """Return the results of a call, and what gradients need besides them."""
    examples = results[0][1].shape[:-3]
    one = {name: jax.ShapeDtypeStruct(array.shape[len(examples) :], array.dtype) for name, array in given.items()}
    training = replace(call, descriptor=replace(call.descriptor, training=True))
    kinds = kinds_of_results(training, one)
    full = ((name, jax.core.ShapedArray((*examples, *kind.shape), kind.dtype)) for name, kind in kinds)
    return bind(training, given, tuple(full))


def _push(function: Callable[..., list[Any]], primals: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """Return the tangents of a function's results by JAX."""
    places = [at for at, pair in enumerate(zip(primals, tangents, strict=True)) if _moves(*pair)]

    def of_some(*some: Any) -> list[Any]:
        arrays = list(primals)
        for place, array in zip(places, some, strict=True):
            arrays[place] = array
        return function(*arrays)

    pushed: list[Any]
    _, pushed = jax.jvp(of_some, [primals[at] for at in places], [tangents[at] for at in places])
    return pushed


_tangents = make_primitive("vkrnn_tangents")
"""The tangents of the results of a call. Its operands are the call's arguments, what gradients need of its results, and
the tangents of some arguments; `names`, `kept` and `moved` are their names."""


def _bind_tangents(
    call: CallSpec, given: Mapping[str, Any], kept: Mapping[str, Any], moved: Mapping[str, Any], results: Kinds
) -> dict[str, Any]:
    """Return the tangents of those results that have them, by name."""
    call = replace(call, descriptor=replace(call.descriptor, training=False))
    shown = tuple((name, kind) for name, kind in results if name in _GRADIENT_NAMES)
    names = {"names": tuple(given), "kept": tuple(kept), "moved": tuple(moved)}
    arrays = itertools.chain(given.values(), kept.values(), moved.values())
    found = _tangents.bind(*arrays, call=call, results=shown, **names)
    return {name: array for (name, _), array in zip(shown, found, strict=True)}


def _split(arrays: Sequence[Any], *names: Names) -> list[dict[str, Any]]:
    """Return the operands of the primitive by name: arguments, what gradients need, and tangents."""
    rest = iter(arrays)
    return [dict(zip(each, itertools.islice(rest, len(each)), strict=True)) for each in names]


def _tangents_by_scan(
    *arrays: Any, call: CallSpec, names: Names, kept: Names, moved: Names, results: Kinds
) -> list[Any]:
    def one(*own: Any) -> list[Any]:
        given, _, tangents = _split(own, names, kept, moved)
        alone = tuple((name, jax.core.ShapedArray(kind.shape[-3:], kind.dtype)) for name, kind in results)

        def function(some: Mapping[str, Any]) -> list[Any]:
            return by_scan(call, names, alone, *{**given, **some}.values())

        pushed: list[Any]
        _, pushed = jax.jvp(function, ({name: given[name] for name in moved},), (tangents,))
        return pushed

    return over_examples(one, len(results[0][1].shape) - 3, arrays)


def _transpose(
    above: Sequence[Any], *arrays: Any, call: CallSpec, names: Names, kept: Names, moved: Names, results: Kinds
) -> list[Any]:
    """Return the gradients of the tangents: a call of vkrnn's gradients."""
    given, saved, tangents = _split(arrays, names, kept, moved)
    cell, examples = _CELLS[call.cell], results[0][1].shape[:-3]
    one_step = not isinstance(results[0][1].shape[-3], int) or results[0][1].shape[-3] == 1  # a symbolic size may be 1
    own = {}
    for (name, _), gradient in zip(results, above, strict=True):
        if isinstance(gradient, ad.Zero):
            continue
        if name != "output" and "lengths" in given and one_step:
            # Else a row without steps would pass it on to its initial state.
            gradient = jnp.where((given["lengths"] > 0)[..., jnp.newaxis, :, jnp.newaxis], gradient, 0)  # noqa: PLW2901
        own[_GRADIENT_NAMES[name]] = gradient
    wanted = tuple(
        (name, jax.core.ShapedArray((*examples, *given[name].shape[len(examples) :]), given[name].dtype))
        for name in cell.gradient_order
        if name in given and given[name].dtype != bool
    )
    found = bind(replace(call, function=cell.gradients_name), {**given, **saved, **own}, wanted)
    gradients = [
        _summed(found[name], tangent.aval.shape) if ad.is_undefined_primal(tangent) else None
        for name, tangent in tangents.items()
    ]
    return [None] * (len(names) + len(kept)) + gradients


def _summed(gradient: Any, shape: tuple[Any, ...]) -> Any:
    """Return a gradient summed over the examples that share an argument of that shape."""
    axes = [at for at, (own, size) in enumerate(zip(gradient.shape, shape, strict=True)) if own != size]
    return jnp.sum(gradient, axes, keepdims=True) if axes else gradient


def _move_tangents(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    call: CallSpec,
    names: Names,
    kept: Names,
    moved: Names,
    results: Kinds,
) -> tuple[Any, Any]:
    """Return tangents, and their own tangents."""
    how: dict[str, Any] = {"call": call, "names": names, "kept": kept, "moved": moved, "results": results}
    found = _tangents.bind(*primals, **how)
    pushed: list[Any] = list(map(_zero, found))
    *_, of_tangents = _split(tangents, names, kept, moved)
    again = {name: tangent for name, tangent in of_tangents.items() if not isinstance(tangent, ad.Zero)}
    if again:
        given, saved, _ = _split(primals, names, kept, moved)
        pushed = list(_bind_tangents(call, given, saved, again, results).values())
    count = len(names)
    if any(map(_moves, primals[:count], tangents[:count])):
        of_arguments = [*tangents[:count], *map(_zero, primals[count:])]
        more = _push(lambda *arrays: _tangents_by_scan(*arrays, **how), primals, of_arguments)
        pushed = list(map(ad.add_tangents, pushed, more))
    return found, pushed


ad.primitive_jvps[primitive] = _move_results
ad.primitive_jvps[_tangents] = _move_tangents
ad.primitive_transposes[_tangents] = _transpose
mlir.register_lowering(_tangents, mlir.lower_fun(_tangents_by_scan, multiple_results=True))
