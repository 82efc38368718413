"""The three forward operations for JAX, with gradients, under jit and vmap; needs the extra ``jax``.

>>> import jax, jax.numpy as jnp
>>> import vkrnn.jax
>>> source, weight = jnp.ones((5, 3, 8)), jnp.full((8, 2), 0.1)
>>> vkrnn.jax.lstm(source, weight)
Results(lstm: output [5, 3, 2] float32)
>>> jax.grad(lambda weight: vkrnn.jax.lstm(source, weight).output.sum())(weight).shape
(8, 2)

Each call leaves JAX's program for a callback (`jax.pure_callback`), which hands NumPy arrays to vkrnn. `docs/jax.md`
says what works.
"""

from __future__ import annotations

import atexit
import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from vkrnn import _core, descriptors
from vkrnn._calls import CheckedCall, run
from vkrnn.descriptors import GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor
from vkrnn.devices import Device, DeviceLike
from vkrnn.results import Gradients, GRUGradients, LSTMGradients, LSTMOutputs, Outputs, Results

try:
    import jax
    import jax.numpy as jnp
    from jax.custom_derivatives import SymbolicZero
except ImportError as error:
    raise ImportError(f"vkrnn.jax needs the package jax ({error}): pip install 'vkrnn[jax]'") from error

__all__ = ["gru", "lstm", "single_gate_rnn"]

# JAX's threads must not be in a callback, in Python, when the interpreter ends.
atexit.register(lambda: jax.block_until_ready(jax.live_arrays()))

Array = npt.NDArray[Any]
Arrays = Mapping[str, Any]
Kind = TypeVar("Kind", bound=Results[Any])

_CELLS = {cell.name: cell for cell in _core.cells()}
_ABSENT = {
    "cell_output": "the descriptor has produce_cell=False",
    "z_state": "JAX keeps it by itself where gradients are asked for",
}
# The axis of the batch rows, counted from the end, in the arguments that can differ between the examples of a vmap.
_ROWS = {"source": -2, "init_state": -2, "init_cell": -2, "lengths": -1}


def single_gate_rnn(
    source: Any,
    recurrent_weight: Any,
    *,
    input_weight: Any = None,
    bias: Any = None,
    init_state: Any = None,
    mask: Any = None,
    lengths: Any = None,
    descriptor: SingleGateRNNDescriptor | None = None,
    device: DeviceLike | None = None,
) -> Outputs[jax.Array]:
    """Run `vkrnn.single_gate_rnn` on arrays of JAX.

    Parameters are those of `vkrnn.single_gate_rnn`, which has shapes and equations; arrays are JAX's or what
    ``jnp.asarray`` takes. The descriptor's ``training`` changes nothing. Without `device` the call runs on the default
    device of the time when it is traced.

    Returns
    -------
    Outputs
        ``output``, [T, N, H], bidirectional [T, N, 2H]; a pytree.

    Raises
    ------
    TypeError, ValueError, NotImplementedError, DeviceError
        As `vkrnn.single_gate_rnn`, when the call is traced; what only running it shows is an error of JAX's with the
        same message. NotImplementedError also for gradients with respect to `mask` and for gradients of gradients.
    """
    given = {"input_weight": input_weight, "bias": bias, "init_state": init_state, "mask": mask, "lengths": lengths}
    return _traced(Outputs, "single_gate_rnn", source, recurrent_weight, given, descriptor, device)


def lstm(
    source: Any,
    recurrent_weight: Any,
    *,
    input_weight: Any = None,
    bias: Any = None,
    init_state: Any = None,
    init_cell: Any = None,
    mask: Any = None,
    peephole: Any = None,
    lengths: Any = None,
    descriptor: LSTMDescriptor | None = None,
    device: DeviceLike | None = None,
) -> LSTMOutputs[jax.Array]:
    """Run `vkrnn.lstm` on arrays of JAX.

    Parameters are those of `vkrnn.lstm`, which has shapes and equations; arrays are JAX's or what ``jnp.asarray``
    takes. The descriptor's ``training`` changes nothing. Without `device` the call runs on the default device of the
    time when it is traced.

    Returns
    -------
    LSTMOutputs
        ``output``, [T, N, H], bidirectional [T, N, 2H]; with ``produce_cell`` also ``cell_output``, the same shape; a
        pytree. Of ``cell_output`` only each direction's last step may take part in what is differentiated.

    Raises
    ------
    TypeError, ValueError, NotImplementedError, DeviceError
        As `vkrnn.lstm`, when the call is traced; what only running it shows, such as a gradient of other cells than the
        last, is an error of JAX's with the same message. NotImplementedError also for gradients with respect to `mask`
        and for gradients of gradients.
    """
    given = {
        "input_weight": input_weight,
        "bias": bias,
        "init_state": init_state,
        "init_cell": init_cell,
        "mask": mask,
        "peephole": peephole,
        "lengths": lengths,
    }
    return _traced(LSTMOutputs, "lstm", source, recurrent_weight, given, descriptor, device)


def gru(
    source: Any,
    recurrent_weight: Any,
    *,
    input_weight: Any = None,
    bias: Any = None,
    init_state: Any = None,
    mask: Any = None,
    secondary_bias: Any = None,
    lengths: Any = None,
    descriptor: GRUDescriptor | None = None,
    device: DeviceLike | None = None,
) -> Outputs[jax.Array]:
    """Run `vkrnn.gru` on arrays of JAX.

    Parameters are those of `vkrnn.gru`, which has shapes and equations; arrays are JAX's or what ``jnp.asarray`` takes.
    The descriptor's ``training`` changes nothing. Without `device` the call runs on the default device of the time when
    it is traced.

    Returns
    -------
    Outputs
        ``output``, [T, N, H], bidirectional [T, N, 2H]; a pytree.

    Raises
    ------
    TypeError, ValueError, NotImplementedError, DeviceError
        As `vkrnn.gru`, when the call is traced; what only running it shows is an error of JAX's with the same message.
        NotImplementedError also for gradients with respect to `mask` and for gradients of gradients.
    """
    given = {
        "input_weight": input_weight,
        "bias": bias,
        "init_state": init_state,
        "mask": mask,
        "secondary_bias": secondary_bias,
        "lengths": lengths,
    }
    return _traced(Outputs, "gru", source, recurrent_weight, given, descriptor, device)


@dataclass(frozen=True)
class _How:
    """What of a call is no array."""

    cell: str
    descriptor: Any
    device: Device

    def training(self) -> _How:
        """Return the same, keeping what the gradients need."""
        return replace(self, descriptor=replace(self.descriptor, training=True))


def _traced(
    kind: type[Kind],
    cell: str,
    source: Any,
    recurrent_weight: Any,
    optional: Arrays,
    descriptor: Any,
    device: DeviceLike | None,
) -> Kind:
    every = {"source": source, "recurrent_weight": recurrent_weight, **optional}
    for name in ("source", "recurrent_weight"):
        if every[name] is None:
            raise TypeError(f"[vkrnn.jax.{cell}] {name}: expected an array, got None")
    given = {name: jnp.asarray(value) for name, value in every.items() if value is not None}
    if descriptor is None:
        descriptor = getattr(descriptors, _CELLS[cell].descriptor_name)()
    checked = _checked(cell, given, descriptor, device)
    how = _How(cell, replace(descriptor, training=False), checked.resolved(None))
    found = _call(how, given)
    outputs = _CELLS[cell].outputs  # their order, which JAX's dicts do not keep
    names = [name for name in outputs if name in found]
    return kind(cell, names, map(found.get, names), {name: _ABSENT[name] for name in outputs if name not in found})


def _checked(cell: str, given: Arrays, descriptor: Any, device: DeviceLike | None) -> CheckedCall:
    """Check a call by its shapes and dtypes, and by the numbers of `lengths` where they are known already."""
    like = {name: _like(value, name) for name, value in given.items()}
    return CheckedCall.of(cell, like, descriptor=descriptor, name=None, device=device, out=None)


def _like(value: Any, name: str) -> Array:
    if name == "lengths" and not isinstance(value, jax.core.Tracer):
        return np.asarray(value)
    return np.broadcast_to(np.ones((), value.dtype), value.shape)


def _forward(how: _How, given: Arrays) -> Any:
    call = _checked(how.cell, given, how.descriptor, how.device).call
    dtype = given["source"].dtype
    shapes = zip(call.result_names, call.result_shapes, strict=True)
    like = {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape in shapes}
    return _on_the_host(how.cell, how, like, given)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _call(how: _How, given: Arrays) -> Any:
    return _forward(how, given)


def _call_and_keep(how: _How, given: Arrays) -> tuple[dict[str, Any], tuple[Arrays, Arrays]]:
    if "mask" in given and given["mask"].perturbed:
        raise NotImplementedError(f"[vkrnn.jax.{how.cell}] mask: vkrnn computes no gradient with respect to it")
    arrays = {name: primal.value for name, primal in given.items()}
    found = _forward(how.training(), arrays)
    taken = {name: name.removesuffix("_fwd") for name, _ in _CELLS[how.cell].gradients}
    kept = {name: found[result] for name, result in taken.items() if result in found}
    shown = _checked(how.cell, arrays, how.descriptor, how.device).call.result_names
    return {name: found[name] for name in shown}, (arrays, kept)


def _differentiate(how: _How, kept: tuple[Arrays, Arrays], above: Arrays) -> tuple[dict[str, Any]]:
    given, results = kept
    output = above["output"]
    zeros = {"source_gradient": jnp.zeros(output.shape, output.dtype)}  # where the output takes no part
    names = {"output": "source_gradient", "cell_output": "cell_gradient"}
    own = {names[name]: gradient for name, gradient in above.items() if not isinstance(gradient, SymbolicZero)}
    found = _gradients(how, {**given, **results, **zeros, **own})
    return ({name: found.get(name) for name in given},)  # None is no gradient: mask, lengths


_call.defvjp(_call_and_keep, _differentiate, symbolic_zeros=True)


def _gradients(how: _How, given: Arrays) -> Any:
    cell = _CELLS[how.cell]
    arrays = {name: given[name] for name in cell.gradient_order if name in given}
    like = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in arrays.items()}
    return _on_the_host(cell.gradients_name, how, like, given)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _on_the_host(function: str, how: _How, like: Mapping[str, Any], given: Arrays) -> dict[str, Any]:
    compute = functools.partial(_compute_all, function, how)
    found: dict[str, Any] = jax.pure_callback(compute, dict(like), dict(given), vmap_method="expand_dims")
    return found


@_on_the_host.defjvp
def _refuse(_function: str, how: _How, _like: Any, _primals: Any, _tangents: Any) -> Any:
    raise NotImplementedError(f"[vkrnn.jax.{how.cell}] gradients of gradients: vkrnn has first derivatives only")


def _compute_all(function: str, how: _How, given: Arrays) -> dict[str, Array]:
    """Compute a call for each example of the vmaps around it, for each of which arrays have an axis in front, or 1."""
    arrays = {name: np.asarray(value) for name, value in given.items()}
    axes = arrays["source"].ndim - 3
    if axes == 0:
        return _compute(function, how, arrays)
    examples = np.broadcast_shapes(*(array.shape[:axes] for array in arrays.values()))
    full = {name: np.broadcast_to(array, examples + array.shape[axes:]) for name, array in arrays.items()}
    shared = {name: array for name, array in arrays.items() if name not in _ROWS}
    together = function == how.cell and "mask" not in arrays  # gradients of weights are wanted for each example
    if together and all(array.shape[:axes] == (1,) * axes for array in shared.values()):
        merged = {name: _merge(full[name], axes, row) for name, row in _ROWS.items() if name in full}
        found = _compute(function, how, merged | {name: array[(0,) * axes] for name, array in shared.items()})
        return {name: _split(array, examples) for name, array in found.items()}
    each = [_compute(function, how, {name: array[at] for name, array in full.items()}) for at in np.ndindex(examples)]
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


def _compute(function: str, how: _How, given: Mapping[str, Array]) -> dict[str, Array]:
    arguments = dict(given)
    if "cell_gradient" in arguments:
        directions = 2 if how.descriptor.bidirectional else 1
        arguments["cell_gradient"] = _last_cells(arguments["cell_gradient"], directions, arguments.get("lengths"))
    return run(
        Results, function, arguments, descriptor=how.descriptor, name=None, device=how.device, out=None
    )._asdict()


def _last_cells(gradient: Array, D: int, lengths: Array | None) -> Array:
    """Return [N, DH], the gradients of the cells after each direction's last step; of others there must be none."""
    T, N, channels = gradient.shape
    H = channels // D
    ends = np.full(N, T) if lengths is None else lengths
    inside = np.arange(T)[:, np.newaxis] < ends
    rest = np.where(inside[:, :, np.newaxis], gradient, 0)  # past an end cells are constant
    last = np.empty((N, channels), gradient.dtype)
    for at, direction in ((ends - 1, np.s_[:H]), (np.zeros(N, int), np.s_[H:])):
        last[:, direction] = rest[at, np.arange(N), direction]
        rest[at, np.arange(N), direction] = 0
    if rest.any():
        raise NotImplementedError(
            "[vkrnn.jax.lstm] cell_output: vkrnn has gradients of the cells after each direction's last step only"
        )
    return last


def _flatten(results: Results[Any]) -> tuple[tuple[Any, ...], Any]:
    _, (function, names, arrays, absent) = results.__reduce__()
    return arrays, (function, names, tuple(absent.items()))


def _unflatten(kind: type[Kind], rest: Any, arrays: Any) -> Kind:
    function, names, absent = rest
    return kind(function, names, arrays, dict(absent))


for _kind in (Results, Outputs, LSTMOutputs, Gradients, LSTMGradients, GRUGradients):
    jax.tree_util.register_pytree_node(_kind, _flatten, functools.partial(_unflatten, _kind))
