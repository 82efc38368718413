"""The forward operations for JAX, with derivatives, jit and vmap. Needs the package jax.

>>> import jax, jax.numpy as jnp
>>> import vkrnn.jax
>>> source, weight = jnp.ones((5, 3, 8)), jnp.full((8, 2), 0.1)
>>> vkrnn.jax.lstm(source, weight)
Results(lstm: output [5, 3, 2] float32)
>>> jax.grad(lambda weight: vkrnn.jax.lstm(source, weight).output.sum())(weight).shape
(8, 2)

Programs on CPUs and CUDA devices call vkrnn through XLA's foreign function interface, or call back into Python where
`ffi_problem` says why that is so. `docs/jax.md` says what works and what does not.
"""

from __future__ import annotations

import atexit
import functools
from dataclasses import replace
from typing import Any, TypeVar

from vkrnn import _core, descriptors
from vkrnn._base.packages import missing
from vkrnn._base.text import with_paragraphs
from vkrnn._base.warnings import warn_of_unused_bias
from vkrnn.descriptors import GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor, SLSTMDescriptor
from vkrnn.devices import DeviceLike
from vkrnn.results import (
    STATES,
    Gradients,
    GRUGradients,
    LSTMGradients,
    LSTMOutputs,
    Outputs,
    Results,
    SLSTMGradients,
    SLSTMOutputs,
)

try:
    import jax
    import jax.numpy as jnp

    from vkrnn.jax._checks import checked
    from vkrnn.jax._derivatives import forward
    from vkrnn.jax._ffi import ffi_problem
    from vkrnn.jax._host import CallSpec
except ImportError as error:
    raise missing("vkrnn.jax", error, "jax") from error

__all__ = ["ffi_problem", "gru", "lstm", "single_gate_rnn", "slstm"]

# JAX's threads must not be in a Python callback when the interpreter ends.
atexit.register(lambda: jax.block_until_ready(jax.live_arrays()))

Kind = TypeVar("Kind", bound=Results[Any])

_PARAGRAPHS = {
    "parameters": """
        Parameters are those of `vkrnn.{function}`, which has shapes, equations and warnings. Arrays are JAX arrays or
        anything that ``jnp.asarray`` accepts. The descriptor's ``training`` has no effect. Without `device`, a call
        on arrays of an NVIDIA GPU runs there, if vkrnn lists its CUDA device. Others run on the device that is the
        default when they are traced.
        """,
    "raises": """
        Raises
        ------
        TypeError, ValueError, NotImplementedError, DeviceError
            As in `vkrnn.{function}`, when the call is traced. Under ``jit``, errors that only running the call can find
            are errors of JAX with the same message. NotImplementedError also for derivatives with respect to masks.
        """,
}
_CELLS = {cell.name: cell for cell in _core.cells()}
_ABSENT = {
    **{state.sequence: "the descriptor has produce_cell=False" for state in STATES[1:]},
    "z_state": "JAX keeps it by itself where gradients are asked for",
}


@with_paragraphs(_PARAGRAPHS)
def single_gate_rnn(
    source: Any,
    recurrent_weight: Any,
    *,
    input_weight: Any = None,
    bias: Any = None,
    init_state: Any = None,
    mask: Any = None,
    lengths: Any = None,
    reset: Any = None,
    reset_state: Any = None,
    zoneout_mask: Any = None,
    leak: Any = None,
    descriptor: SingleGateRNNDescriptor | None = None,
    device: DeviceLike | None = None,
) -> Outputs[jax.Array]:
    """Run `vkrnn.single_gate_rnn` on JAX arrays.

    {parameters}

    Returns
    -------
    Outputs
        ``output``, [T, N, H], bidirectional [T, N, 2H], in a pytree.

    {raises}
    """
    steps = reset, reset_state, zoneout_mask, leak
    arrays = source, recurrent_weight, input_weight, bias, init_state, mask, lengths, *steps
    return _traced(Outputs, "single_gate_rnn", arrays, descriptor, device)


@with_paragraphs(_PARAGRAPHS)
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
    reset: Any = None,
    reset_state: Any = None,
    reset_cell: Any = None,
    zoneout_mask: Any = None,
    zoneout_cell_mask: Any = None,
    leak: Any = None,
    descriptor: LSTMDescriptor | None = None,
    device: DeviceLike | None = None,
) -> LSTMOutputs[jax.Array]:
    """Run `vkrnn.lstm` on JAX arrays.

    {parameters}

    Returns
    -------
    LSTMOutputs
        ``output``, [T, N, H], bidirectional [T, N, 2H], and with ``produce_cell`` also ``cell_output`` of the same
        shape. They form a pytree.

    {raises}
    """
    steps = reset, reset_state, reset_cell, zoneout_mask, zoneout_cell_mask, leak
    arrays = source, recurrent_weight, input_weight, bias, init_state, init_cell, mask, peephole, lengths, *steps
    return _traced(LSTMOutputs, "lstm", arrays, descriptor, device)


@with_paragraphs(_PARAGRAPHS)
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
    reset: Any = None,
    reset_state: Any = None,
    zoneout_mask: Any = None,
    leak: Any = None,
    descriptor: GRUDescriptor | None = None,
    device: DeviceLike | None = None,
) -> Outputs[jax.Array]:
    """Run `vkrnn.gru` on JAX arrays.

    {parameters}

    Returns
    -------
    Outputs
        ``output``, [T, N, H], bidirectional [T, N, 2H], in a pytree.

    {raises}
    """
    warn_of_unused_bias("[vkrnn.jax.gru]", secondary_bias, descriptor)
    steps = reset, reset_state, zoneout_mask, leak
    arrays = source, recurrent_weight, input_weight, bias, init_state, mask, secondary_bias, lengths, *steps
    return _traced(Outputs, "gru", arrays, descriptor, device)


@with_paragraphs(_PARAGRAPHS)
def slstm(
    source: Any,
    recurrent_weight: Any,
    *,
    input_weight: Any = None,
    bias: Any = None,
    init_state: Any = None,
    init_cell: Any = None,
    init_normalizer: Any = None,
    init_stabilizer: Any = None,
    mask: Any = None,
    lengths: Any = None,
    reset: Any = None,
    reset_state: Any = None,
    reset_cell: Any = None,
    zoneout_mask: Any = None,
    leak: Any = None,
    descriptor: SLSTMDescriptor | None = None,
    device: DeviceLike | None = None,
) -> SLSTMOutputs[jax.Array]:
    """Run `vkrnn.slstm` on JAX arrays.

    {parameters}

    Returns
    -------
    SLSTMOutputs
        ``output``, [T, N, H], bidirectional [T, N, 2H], and with ``produce_cell`` also ``cell_output``,
        ``normalizer_output`` and ``stabilizer_output`` of the same shape. They form a pytree.

    {raises}
    """
    states = init_state, init_cell, init_normalizer, init_stabilizer
    steps = lengths, reset, reset_state, reset_cell, zoneout_mask, leak
    arrays = source, recurrent_weight, input_weight, bias, *states, mask, *steps
    return _traced(SLSTMOutputs, "slstm", arrays, descriptor, device)


def _traced(kind: type[Kind], cell: str, arrays: tuple[Any, ...], descriptor: Any, device: DeviceLike | None) -> Kind:
    """Return the results of a call of `cell`. `arrays` are in the order of its parameters."""
    arguments = dict(zip(_CELLS[cell].forward, arrays, strict=True))
    for (name, optional), value in arguments.items():
        if value is None and not optional:
            raise TypeError(f"[vkrnn.jax.{cell}] {name}: expected an array, got None")
    given = {name: jnp.asarray(value) for (name, _), value in arguments.items() if value is not None}
    if isinstance(arguments.get(("leak", True)), (float, int)):
        given["leak"] = given["leak"].astype(given["source"].dtype)
    if descriptor is None:
        descriptor = getattr(descriptors, _CELLS[cell].descriptor_name)()
    chosen = checked(cell, given, descriptor, device).resolved(None)
    descriptor = replace(descriptor, training=False)
    found = forward(CallSpec(cell, cell, descriptor, chosen, device is not None, chosen.float32), given)
    outputs = _CELLS[cell].outputs  # their order, which JAX's dicts do not keep
    names = [name for name in outputs if name in found]
    return kind(cell, names, map(found.get, names), {name: _ABSENT[name] for name in outputs if name not in found})


def _flatten(results: Results[Any]) -> tuple[tuple[Any, ...], Any]:
    _, (function, names, arrays, absent) = results.__reduce__()
    return arrays, (function, names, tuple(absent.items()))


def _unflatten(kind: type[Kind], rest: Any, arrays: Any) -> Kind:
    function, names, absent = rest
    return kind(function, names, arrays, dict(absent))


for _kind in (Results, Outputs, LSTMOutputs, SLSTMOutputs, Gradients, LSTMGradients, GRUGradients, SLSTMGradients):
    jax.tree_util.register_pytree_node(_kind, _flatten, functools.partial(_unflatten, _kind))
