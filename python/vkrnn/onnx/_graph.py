"""The nodes of an ONNX model's graphs, with what is known of the values that they read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from vkrnn.convert._onnx import INPUTS, WEIGHTS
from vkrnn.convert._onnx_attributes import QUANTIZED

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, TensorProto

__all__ = ["MICROSOFT", "Scope", "Shape", "graphs_within", "nodes_of", "weights_of"]

MICROSOFT = "com.microsoft"
"""The domain of onnxruntime's own operators."""

Shape: TypeAlias = list[int | None]


@dataclass(frozen=True)
class Scope:
    """The values that nodes of a graph can read, by name: constants of the model, and shapes that are known."""

    constants: Mapping[str, TensorProto] = field(default_factory=dict)
    shapes: Mapping[str, Shape] = field(default_factory=dict)


def nodes_of(graph: GraphProto, outside: Scope | None = None) -> Iterator[tuple[NodeProto, Scope]]:
    """Yield the nodes of a graph and of the graphs within its nodes, each with its scope.

    Initializers that inputs of the graph can override are no constants. `outside` is the scope around the graph.
    """
    outside = outside or Scope()
    constants = {**outside.constants, **{tensor.name: tensor for tensor in graph.initializer}}
    for value in graph.input:
        constants.pop(value.name, None)
    for node in graph.node:
        tensors = [attribute.t for attribute in node.attribute if attribute.name == "value"]
        for name in node.output:
            constants.pop(name, None)
            if node.op_type == "Constant" and tensors:
                constants[name] = tensors[0]
    shapes = {**outside.shapes, **{name: list(tensor.dims) for name, tensor in constants.items()}}
    for value in (*graph.input, *graph.value_info, *graph.output):
        shapes.pop(value.name, None)
        if value.type.tensor_type.HasField("shape"):
            sizes = value.type.tensor_type.shape.dim
            shapes[value.name] = [size.dim_value if size.HasField("dim_value") else None for size in sizes]
    scope = Scope(constants, shapes)
    for node in graph.node:
        yield node, scope
        for inner in graphs_within(node):
            yield from nodes_of(inner, scope)


def graphs_within(node: NodeProto) -> Iterator[GraphProto]:
    """Yield the graphs that a node has as attributes, such as the branches of an If."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def weights_of(node: NodeProto) -> list[str] | None:
    """Return the names of a recurrent node's weights; None for another node."""
    domains = (MICROSOFT,) if node.op_type == QUANTIZED else ("", "ai.onnx")
    if node.op_type not in INPUTS or node.domain not in domains:
        return None
    return [name for key, name in zip(INPUTS[node.op_type], node.input, strict=False) if key in WEIGHTS and name]
