"""Weights of recurrent nodes that other nodes make of constants, such as those behind an Unsqueeze, computed once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from vkrnn.convert._onnx import dequantized_along
from vkrnn.onnx._graph import graphs_within, nodes_of, weights_of

__all__ = ["constants_of", "fold_weights"]

Array: TypeAlias = npt.NDArray[Any]

# Operators that move elements, which ONNX's evaluator computes right in all opsets.
_MOVES = {
    *("Cast", "Concat", "ConstantOfShape", "Expand", "Flatten", "Gather", "Identity", "Reshape", "Shape", "Slice"),
    *("Split", "Squeeze", "Transpose", "Unsqueeze"),
}
_DEQUANTIZE = "DequantizeLinear"
_VALUES = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}


def constants_of(node: NodeProto) -> Iterator[tuple[str, TensorProto]]:
    """Yield the name and tensor of a Constant of numbers."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
        return
    for attribute in node.attribute:
        if attribute.name == "value":
            yield node.output[0], attribute.t
        elif attribute.name in _VALUES:
            value = np.array(helper.get_attribute_value(attribute), _VALUES[attribute.name])
            yield node.output[0], numpy_helper.from_array(value, node.output[0])


def fold_weights(model: ModelProto) -> None:
    """Replace nodes by constants if they compute weights of recurrent nodes from constants of the model.

    Initializers that inputs of the model can override are no constants.
    """
    nodes = [node for node, _ in nodes_of(model.graph)]
    wanted = {name for node in nodes for name in weights_of(node) or ()}
    for node in reversed(nodes):  # each comes after those that make its inputs
        if _is_foldable(node) and wanted.intersection(node.output):
            wanted.update(node.input)
    _Fold(model, wanted).graph(model.graph, {})


def _is_foldable(node: NodeProto) -> bool:
    return node.domain in ("", "ai.onnx") and node.op_type in (*_MOVES, _DEQUANTIZE)


class _Fold:
    """Folds the nodes of a model that compute `wanted` values."""

    def __init__(self, model: ModelProto, wanted: set[str]) -> None:
        self._opsets, self._ir_version, self._wanted = model.opset_import, model.ir_version, wanted

    def graph(self, graph: GraphProto, outside: Mapping[str, TensorProto]) -> None:
        """Fold the nodes of a graph and of the graphs within its nodes. `outside` are the constants around it."""
        constants = {**outside, **{tensor.name: tensor for tensor in graph.initializer}}
        for value in graph.input:
            constants.pop(value.name, None)
        kept: list[NodeProto] = []
        for node in graph.node:
            for inner in graphs_within(node):
                self.graph(inner, constants)
            for name in node.output:
                constants.pop(name, None)
            folded = self._folded(node, constants) or [node]
            for each in folded:
                constants.update(constants_of(each))
            kept += folded
        new = GraphProto(node=kept)
        graph.ClearField("node")
        graph.node.extend(new.node)

    def _folded(self, node: NodeProto, constants: Mapping[str, TensorProto]) -> list[NodeProto]:
        given = [name for name in node.input if name]
        if not _is_foldable(node) or not self._wanted.intersection(node.output) or not constants.keys() >= set(given):
            return []
        if node.op_type != _DEQUANTIZE and any(constants[name].data_type == TensorProto.BFLOAT16 for name in given):
            return []  # an array of NumPy has no such type in each version of onnx
        arrays = {name: numpy_helper.to_array(constants[name]) for name in given}
        if node.op_type == _DEQUANTIZE:
            options = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
            if not options.keys() <= {"axis", "block_size"}:
                return []
            results: Sequence[Array] = [dequantized_along(*arrays.values(), **options)]
        else:
            results = self._computed(node, arrays)
        named = zip(node.output, results, strict=True)
        return [
            helper.make_node("Constant", [], [name], f"{node.name}/{name}", value=numpy_helper.from_array(array))
            for name, array in named
            if name
        ]

    def _computed(self, node: NodeProto, arrays: Mapping[str, Array]) -> Sequence[Array]:
        values = [[helper.make_empty_tensor_value_info(name) for name in names] for names in (arrays, node.output)]
        model = helper.make_model(helper.make_graph([node], "fold", *values), opset_imports=self._opsets)
        model.ir_version = self._ir_version
        return list(ReferenceEvaluator(model).run(None, dict(arrays)))
