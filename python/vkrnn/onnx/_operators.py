"""ONNX's recurrent operators for ONNX's own evaluator."""

from __future__ import annotations

from typing import Any, ClassVar, TypeAlias

import numpy.typing as npt
from onnx import ModelProto, NodeProto
from onnx.reference.op_run import OpRun

from vkrnn.onnx._graph import MICROSOFT, nodes_of, weights_of
from vkrnn.onnx._kept import KeptNode
from vkrnn.onnx._node import compute

__all__ = ["GRU", "LSTM", "OPERATORS", "RNN", "DynamicQuantizeLSTM", "operators_of"]

Array: TypeAlias = npt.NDArray[Any]
_Key: TypeAlias = tuple[str, tuple[str, ...], tuple[str, ...]]


def _key(node: NodeProto) -> _Key:
    return node.op_type, tuple(node.input), tuple(node.output)


class _Operator(OpRun):
    """The base of the operators for `onnx.reference.ReferenceEvaluator`."""

    op_domain = ""
    constant: ClassVar[frozenset[_Key]] = frozenset()  # nodes whose weights are constants of the model
    _kept: KeptNode | None = None

    def run(self, *inputs: Any, **options: Any) -> tuple[Any, ...]:
        """Compute the node. With kept weights, skip the evaluator's own checks, which take as long as the call."""
        results = None if self._kept is None or options else self._kept.run(inputs)
        return super().run(*inputs, **options) if results is None else results

    def _run(self, *inputs: Any, **attributes: Any) -> tuple[Array, ...]:
        node = self.onnx_node
        results = compute(node.op_type, node.name, attributes, inputs, len(node.output), None)
        if self._kept is None and _key(node) in self.constant:
            kept = KeptNode(node, attributes, inputs)
            self._kept = kept if kept.is_usual else None
        return results

    def _check_and_fix_outputs(self, res: tuple[Any, ...]) -> tuple[Any, ...]:
        # The evaluator would pass an unnamed output to later nodes in place of an absent input.
        return tuple(array if name else None for name, array in zip(self.onnx_node.output, res, strict=False))


class RNN(_Operator):
    """ONNX's RNN for `onnx.reference.ReferenceEvaluator`. It runs on the default device."""


class GRU(_Operator):
    """ONNX's GRU for `onnx.reference.ReferenceEvaluator`. It runs on the default device."""


class LSTM(_Operator):
    """ONNX's LSTM for `onnx.reference.ReferenceEvaluator`. It runs on the default device."""


class DynamicQuantizeLSTM(_Operator):
    """onnxruntime's LSTM with weights in eight bits. It computes with the dequantized weights, in float32."""

    op_domain = MICROSOFT


OPERATORS = [RNN, GRU, LSTM, DynamicQuantizeLSTM]
"""The argument ``new_ops`` of `onnx.reference.ReferenceEvaluator`. They run on the default device."""


def operators_of(model: ModelProto) -> list[type[OpRun]]:
    """Return the operators for the evaluator of a model. They keep weights that are constants of the model."""
    constant: dict[_Key, bool] = {}
    for node, scope in nodes_of(model.graph):
        weights = weights_of(node)
        if weights is not None:
            # Two branches may have equal names.
            constant[_key(node)] = scope.constants.keys() >= set(weights) and constant.get(_key(node), True)
    kept = frozenset(key for key, is_constant in constant.items() if is_constant)
    return [type(operator.__name__, (operator,), {"constant": kept}) for operator in OPERATORS]
