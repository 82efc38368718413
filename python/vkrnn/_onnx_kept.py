"""ONNX's recurrent nodes with weights that a device keeps from call to call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy.typing as npt

from vkrnn._layer import Layer
from vkrnn._onnx_weights import INPUTS, OPERATIONS, RecurrentNode
from vkrnn._prepared import Prepared
from vkrnn.devices import resolve

__all__ = ["KeptNode"]

Array: TypeAlias = npt.NDArray[Any]


class KeptNode:
    """A node whose weights a device keeps; `inputs` are those of its first call, and none if weights may change.

    It computes the usual calls: whole sequences, and one call for the node. The others, mistakes among them, go the way
    of every node.
    """

    def __init__(self, op: str, name: str, attributes: Mapping[str, Any], inputs: Sequence[Any], outputs: int) -> None:
        self._outputs = outputs
        self._states = [INPUTS[op].index(key) for key in ("initial_h", "initial_c") if key in INPUTS[op]]
        self._lengths = INPUTS[op].index("sequence_lens")
        weights = [(place, inputs[place]) for place, key in enumerate(INPUTS[op][: len(inputs)]) if key in "WRBP"]
        self._weights = [(place, array) for place, array in weights if array is not None]
        self._prepared: Prepared | None = None
        if self._weights:
            self._node = RecurrentNode.read(
                op, name, attributes, {INPUTS[op][at]: array for at, array in self._weights}
            )
            self._is_usual = len(self._node.parts) == 1

    def run(self, inputs: Sequence[Any]) -> tuple[Array, ...] | None:
        """Return the node's outputs; None if this is no usual call."""
        if not self._weights or not self._is_usual:
            return None
        given = [inputs[at] if at < len(inputs) else None for at in self._states]
        if (self._lengths < len(inputs) and inputs[self._lengths] is not None) or any(
            inputs[at] is not array for at, array in self._weights
        ):
            return None
        try:
            return self._compute(inputs[0], given)[: self._outputs]
        except (MemoryError, RuntimeError, TypeError, ValueError):
            return None

    def _compute(self, source: Array, states: Sequence[Array | None]) -> tuple[Array, ...]:
        node = self._node
        if node.batch_first:
            source, states = source.swapaxes(0, 1), [None if each is None else each.swapaxes(0, 1) for each in states]
        device = resolve(None, "[onnx]")
        prepared = self._prepared
        if prepared is None or prepared.device is not device:
            [part] = node.parts
            layer = Layer(OPERATIONS[node.op], dict(part.arguments), part.descriptor)
            prepared = self._prepared = Prepared([layer], device)
        output, *last = prepared.run(source, *states)
        if node.parts[0].descriptor.reverse:
            output = output[::-1].copy()
        T, N, _ = output.shape
        by_direction = output.reshape(T, N, node.directions, node.hidden)
        if node.batch_first:
            return (by_direction.swapaxes(0, 1), *(state.swapaxes(0, 1) for state in last))
        return (by_direction.transpose(0, 2, 1, 3), *last)
