"""Single calls of ONNX's RNN, GRU and LSTM, with weights that are read in the call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vkrnn._interop.foreign import as_numpy
from vkrnn.convert._onnx import INPUTS, OPERATIONS, Part, RecurrentNode, in_source_order, require_shape
from vkrnn.convert._onnx_attributes import attributes_of, place
from vkrnn.devices import DeviceLike
from vkrnn.results import LSTMOutputs

if TYPE_CHECKING:
    from onnx import NodeProto

__all__ = ["Inputs", "compute", "run_node"]

Array: TypeAlias = npt.NDArray[Any]
Inputs: TypeAlias = Mapping[str, Any] | Sequence[Any]


def run_node(node: NodeProto, inputs: Inputs, *, device: DeviceLike | None = None) -> tuple[Array, ...]:
    """Compute an RNN, GRU or LSTM node of ONNX, or a DynamicQuantizeLSTM of onnxruntime.

    Parameters
    ----------
    node : onnx.NodeProto
    inputs : sequence of arrays, or mapping of str to arrays
        Arrays by the names in ``node.input``, or in their order. In a sequence, absent inputs are None, or all of them
        are left out. Shapes are those of ONNX for the node's ``layout``.
    device : Device or int or str, optional
        Where to run. `default_device()` if not given.

    Returns
    -------
    tuple of numpy.ndarray
        Y, Y_h and, for an LSTM, Y_c: as many as ``node.output`` has. A sequence of length 0 has zeros in Y and its
        initial state in Y_h and Y_c.

    Raises
    ------
    NotImplementedError
        If vkrnn does not support an attribute. The message begins with the attribute's ONNX name.
    ValueError, TypeError
        If it is another node, an attribute is malformed, or an input is missing or has the wrong shape or dtype.
    MemoryError, DeviceError
        As in a call.

    Notes
    -----
    A node is one call, or two if its directions have different activations.
    """
    if node.op_type not in INPUTS:
        raise ValueError(f"[run_node] node: expected one of {', '.join(INPUTS)}, got {node.op_type}")
    arrays = _by_position(node, inputs)
    return compute(node.op_type, node.name, attributes_of(node), arrays, len(node.output), device)


def _by_position(node: NodeProto, inputs: Inputs) -> list[Any]:
    """Return the inputs in ONNX's order, None for absent ones."""
    names = list(node.input)
    if isinstance(inputs, Mapping):
        missing = [name for name in names if name and name not in inputs]
        if missing:
            raise ValueError(f"{place(node.op_type, node.name, missing[0])} expected an array, got none")
        return [inputs[name] if name else None for name in names]
    if len(inputs) == len(names):
        return list(inputs)
    present = [name for name in names if name]
    if len(inputs) != len(present):
        raise ValueError(f"[run_node] inputs: expected {len(names)} for {', '.join(present)}, got {len(inputs)}")
    left = iter(inputs)
    return [next(left) if name else None for name in names]


def compute(
    op: str,
    name: str,
    attributes: Mapping[str, Any],
    arrays: Iterable[Any],
    outputs: int,
    device: DeviceLike | None,
) -> tuple[Array, ...]:
    """Return the outputs of a node; `arrays` are in the order of `INPUTS`, with None for absent ones."""
    given = {key: array for key, array in zip(INPUTS[op], arrays, strict=False) if array is not None}
    inputs = {key: np.asarray(as_numpy(array, place(op, name, key))) for key, array in given.items()}
    node = RecurrentNode.read(op, name, attributes, inputs)
    X = inputs.get("X")
    if X is None or X.ndim != 3:
        got = "none" if X is None else list(X.shape)
        letters = "[N, T, I]" if node.batch_first else "[T, N, I]"
        raise ValueError(f"{place(op, name, 'X')} expected 3 axes {letters}, got {got}")
    source = X.swapaxes(0, 1) if node.batch_first else X
    call = _Call(node, source, _lengths(node, inputs.get("sequence_lens"), source), device)
    keys = [key for key in ("initial_h", "initial_c") if key in INPUTS[op]]
    initial = [node.state(inputs[key], key, call.N) if key in inputs else None for key in keys]
    results = [call.part(part, initial) for part in node.parts]
    output, *last = [np.concatenate(one, axis=-1) for one in zip(*results, strict=True)] if results[1:] else results[0]
    N, D, H = call.N, node.directions, node.hidden
    by_direction = output.reshape(call.T, N, D, H)
    states = [state.reshape(N, D, H) for state in last]
    if node.batch_first:
        return (by_direction.swapaxes(0, 1), *states)[:outputs]
    return (by_direction.transpose(0, 2, 1, 3), *(state.swapaxes(0, 1) for state in states))[:outputs]


def _lengths(node: RecurrentNode, lengths: Array | None, source: Array) -> Array | None:
    T, N, _ = source.shape
    if lengths is None:
        return None
    where = place(node.op, node.name, "sequence_lens")
    if lengths.dtype.kind not in "iu":
        raise TypeError(f"{where} expected integers, got {lengths.dtype}")
    require_shape(where, lengths, "[N]", (N,))
    outside = lengths[(lengths < 0) | (lengths > T)]
    if len(outside):
        raise ValueError(f"{where} expected 0 to T = {T}, got {outside[0]}")
    return lengths.astype(np.int64)


class _Call:
    """A node with its data: `source` [T, N, I], `lengths` [N] from 0 to T or None, states [N, DH] or None."""

    def __init__(self, node: RecurrentNode, source: Array, lengths: Array | None, device: DeviceLike | None) -> None:
        self.node, self.source, self.lengths, self.device = node, source, lengths, device
        self.T, self.N, _ = source.shape
        self.rows = np.arange(self.N)
        self.ends = np.full(self.N, self.T) if lengths is None else lengths

    def part(self, part: Part, initial: Sequence[Array | None]) -> tuple[Array, ...]:
        """Return the part's output [T, N, DH] in the order of the source, and its last states, from one call."""
        node, H = self.node, self.node.hidden
        initial = [None if state is None else state[:, part.columns] for state in initial]
        has_cell = "initial_c" in INPUTS[node.op]
        descriptor = replace(part.descriptor, produce_cell=True) if has_cell else part.descriptor
        results = OPERATIONS[node.op](
            self.source,
            **part.arguments,
            **dict(zip(("init_state", "init_cell"), initial, strict=False)),
            lengths=self.lengths,
            descriptor=descriptor,
            name=node.name or None,
            device=self.device,
        )
        kept = [results.output, *([results.cell_output] if isinstance(results, LSTMOutputs) else [])]
        last = []
        for state, start in zip(kept, initial, strict=True):
            end = state[np.maximum(self.ends, 1) - 1, self.rows]
            if descriptor.bidirectional:
                end[:, H:] = state[0, :, H:]
            end[self.ends == 0] = 0 if start is None else start[self.ends == 0]
            last.append(end)
        output = results.output
        return (in_source_order(output, self.lengths) if descriptor.reverse else output, *last)
