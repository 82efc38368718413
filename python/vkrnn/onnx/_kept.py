"""ONNX's recurrent nodes with weights that the device keeps between calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy.typing as npt

from vkrnn import _core
from vkrnn._ops.layer import Layer
from vkrnn._ops.prepared import Prepared
from vkrnn.convert._onnx import INPUTS, OPERATIONS, WEIGHTS, RecurrentNode, in_source_order
from vkrnn.devices import Device, default_device

__all__ = ["KeptNode"]

Array: TypeAlias = npt.NDArray[Any]


class KeptNode:
    """A node whose weights are kept by a device. They are constants among the `inputs` of the first call.

    It computes nodes that need one operation. For others, and for wrong arguments, it returns None, and the caller uses
    the ordinary operator.
    """

    def __init__(self, node: Any, attributes: Mapping[str, Any], inputs: Sequence[Any]) -> None:
        op = node.op_type
        names = INPUTS[op]
        given = [(at, array) for at, array in enumerate(inputs) if names[at] in WEIGHTS and array is not None]
        self._states = [at for at, name in enumerate(names) if name in ("initial_h", "initial_c") and at < len(inputs)]
        self._outputs = list(map(bool, node.output))
        self._node = RecurrentNode.read(op, node.name, attributes, {names[at]: array for at, array in given})
        self._lengths = names.index("sequence_lens")
        self._inputs = _core.Node(given, self._lengths, self._states, self._outputs)
        reverse = any(part.descriptor.reverse for part in self._node.parts)
        self._is_plain = self._node.directions == 1 and not self._node.batch_first and not reverse
        self._prepared: Prepared | None = None

    @property
    def is_usual(self) -> bool:
        """Whether the node is one call."""
        return len(self._node.parts) == 1

    def run(self, inputs: tuple[Any, ...]) -> tuple[Array | None, ...] | None:
        """Return the node's outputs, with None for unnamed ones, or None if the call is not supported."""
        try:
            device = default_device()
            prepared = self._prepared
            if prepared is None or prepared.device is not device:
                prepared = self._prepared = self._prepare(device)
            if self._is_plain:
                return prepared.run_node(self._inputs, inputs)
            if not self._inputs.has_weights(inputs):
                return None
            lengths = inputs[self._lengths] if self._lengths < len(inputs) else None
            results = self._results(prepared, inputs[0], [inputs[at] for at in self._states], lengths)
        except (AttributeError, MemoryError, RuntimeError, TypeError, ValueError):
            return None
        return tuple([array if named else None for array, named in zip(results, self._outputs, strict=False)])

    def _prepare(self, device: Device) -> Prepared:
        [part] = self._node.parts
        return Prepared([Layer(OPERATIONS[self._node.op], dict(part.arguments), part.descriptor)], device)

    def _results(
        self, prepared: Prepared, source: Array, states: Sequence[Array | None], lengths: Array | None
    ) -> tuple[Array, ...]:
        node = self._node
        if node.batch_first:
            source, states = source.swapaxes(0, 1), [None if each is None else each.swapaxes(0, 1) for each in states]
        output, *last = prepared.run(source, *states, lengths=lengths)
        if node.parts[0].descriptor.reverse:
            output = in_source_order(output, lengths)
        T, N, _ = output.shape
        by_direction = output.reshape(T, N, node.directions, node.hidden)
        if node.batch_first:
            return (by_direction.swapaxes(0, 1), *(state.swapaxes(0, 1) for state in last))
        return (by_direction.transpose(0, 2, 1, 3), *last)
