"""Recurrent layers whose weights a device keeps between calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from vkrnn import _core
from vkrnn._ops.layer import Layer
from vkrnn.devices import Device

__all__ = ["Prepared"]

Array = npt.NDArray[Any]


class Prepared:
    """A stack of layers whose prepacked weights stay on a device. Thread-safe.

    A call gives the same bits as one call of `vkrnn` per layer. States have torch's and ONNX's layout: [L, N, H], or
    [2L, N, H] for two directions.
    """

    __slots__ = ("_layers", "device")

    def __init__(self, layers: Sequence[Layer], device: Device) -> None:
        self.device = device
        given = [(layer.function.__name__, layer.arguments, layer.descriptor) for layer in layers]
        self._layers = _core.Layers(device._open("[layers]"), given)

    def run(
        self, source: Array, hidden: Array | None = None, cell: Array | None = None, *, lengths: Array | None = None
    ) -> list[Array]:
        """Return the last layer's output and the last states of all layers: hidden, and cell where there is one."""
        results = self._layers.run(source, hidden, cell, self.device, self.device._rounds(), lengths=lengths)
        assert results is not None  # noqa: S101 - only a fingerprint gives None
        return results

    def run_unless_changed(
        self,
        fingerprint: _core.Fingerprint | None,
        source: Array,
        hidden: Array | None = None,
        cell: Array | None = None,
    ) -> list[Array] | None:
        """Do the same as `run`, or return None if the arrays of a fingerprint have changed, which the threads find."""
        return self._layers.run(source, hidden, cell, self.device, self.device._rounds(), fingerprint)

    def run_node(self, node: _core.Node, inputs: tuple[Any, ...]) -> tuple[Array | None, ...] | None:
        """Return the outputs of an ONNX node, which the layer computes; None if `node` does not take these inputs."""
        return node.run(inputs, self._layers, self.device, self.device._rounds())
