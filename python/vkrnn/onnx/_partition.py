"""Models whose recurrent nodes run on a device of vkrnn, and all other nodes in sessions of onnxruntime."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy.typing as npt
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from vkrnn.convert._onnx import INPUTS, WEIGHTS
from vkrnn.convert._onnx_attributes import attributes_of
from vkrnn.onnx._fold import constants_of
from vkrnn.onnx._graph import graphs_within, nodes_of, weights_of
from vkrnn.onnx._kept import KeptNode
from vkrnn.onnx._node import compute
from vkrnn.onnx._sessions import Unsupported, model_of, session_of, value_of

__all__ = ["Partition"]

Array: TypeAlias = npt.NDArray[Any]
Values: TypeAlias = dict[str, Any]


class Partition:
    """A model as a chain of stages: the nodes that a session computes, then the recurrent nodes that need them.

    Attributes
    ----------
    work : float or None
        The work of `run_counted`; None if the model leaves sizes of it open.
    sessions : int
        The number of sessions.
    """

    def __init__(self, onnxruntime: Any, model: ModelProto) -> None:
        graph = model.graph
        if any(weights_of(node) is not None for outer in graph.node for node in _nodes_within(outer)):
            raise Unsupported("recurrent nodes are within If, Loop or Scan")
        self._inputs, self._outputs = {value.name for value in graph.input}, [value.name for value in graph.output]
        constants = {tensor.name: tensor for tensor in graph.initializer}
        self._defaults = {name: numpy_helper.to_array(constants.pop(name)) for name in self._inputs & constants.keys()}
        for node in graph.node:
            constants.update(constants_of(node))
        self._constants = {name: numpy_helper.to_array(constants[name]) for name in constants.keys() & {*self._outputs}}
        values = {value.name: value for value in graph.input}
        self._steps: list[_Session | _Recurrent] = []
        self.work: float | None = 0.0
        needed = {*self._outputs}
        stages = _stages([node for node in graph.node if not any(constants_of(node))])
        for at, stage in enumerate(stages):
            if stage.others:
                later = [*stage.recurrent, *(node for other in stages[at + 1 :] for node in other.nodes)]
                read = needed.union(*map(_read, later))
                self._steps.append(_Session(onnxruntime, model, stage.others, read, values, constants))
            for node in stage.recurrent:
                self._steps.append(_Recurrent(node, constants))
                work = _declare(node, values, constants)
                self.work = None if work is None or self.work is None else self.work + work
        self.sessions = sum(isinstance(step, _Session) for step in self._steps)

    def run(self, names: None, inputs: Mapping[str, Any]) -> list[Array]:  # noqa: ARG002 - as sessions have it
        """Return all outputs of the model."""
        values = self._values(inputs)
        for step in self._steps:
            step.run(values)
        return [values[name] for name in self._outputs]

    def run_counted(self, inputs: Mapping[str, Any]) -> tuple[list[Array], float]:
        """Do the same, and return the floating-point operations of the recurrent nodes after their first time step.

        They say whether a partition is worth its sessions. A single step takes onnxruntime as long as vkrnn, because
        both read the weights once.
        """
        values = self._values(inputs)
        for step in self._steps:
            step.run(values)
        recurrent = (step for step in self._steps if isinstance(step, _Recurrent))
        return [values[name] for name in self._outputs], sum(node.work(values) for node in recurrent)

    def _values(self, inputs: Mapping[str, Any]) -> Values:
        return {**self._constants, **self._defaults, **inputs}


@dataclass
class _Stage:
    others: list[NodeProto] = field(default_factory=list)
    recurrent: list[NodeProto] = field(default_factory=list)

    @property
    def nodes(self) -> list[NodeProto]:
        return [*self.others, *self.recurrent]


def _nodes_within(node: NodeProto) -> Iterator[NodeProto]:
    return (inner for graph in graphs_within(node) for inner, _ in nodes_of(graph))


def _stages(nodes: Iterable[NodeProto]) -> list[_Stage]:
    """Return the nodes by how many recurrent nodes are before them."""
    stages: list[_Stage] = []
    before: dict[str, int] = {}  # the first stage that can read a value
    for node in nodes:
        at = max((before.get(name, 0) for name in _read(node)), default=0)
        while len(stages) <= at:
            stages.append(_Stage())
        is_recurrent = weights_of(node) is not None
        (stages[at].recurrent if is_recurrent else stages[at].others).append(node)
        before.update(dict.fromkeys(node.output, at + is_recurrent))
    return stages


def _read(node: NodeProto) -> set[str]:
    """Return the names that a node reads, also in graphs within it."""
    names = {name for name in node.input if name}
    for graph in graphs_within(node):
        names |= _read_outside(graph)
    return names


def _read_outside(graph: GraphProto) -> set[str]:
    names = {value.name for value in graph.output}.union(*map(_read, graph.node))
    own = {value.name for value in (*graph.input, *graph.initializer)}.union(*(node.output for node in graph.node))
    return names - own


class _Session:
    """Nodes of a model that a session of onnxruntime computes."""

    def __init__(
        self,
        onnxruntime: Any,
        model: ModelProto,
        nodes: Sequence[NodeProto],
        needed: set[str],
        values: dict[str, ValueInfoProto],
        constants: Mapping[str, TensorProto],
    ) -> None:
        """Make the session, and add its outputs to the known values. `needed` are the names that others read."""
        made = {name for node in nodes for name in node.output if name}
        read = set().union(*map(_read, nodes)) - made
        self._inputs = sorted(read - constants.keys())
        self._outputs = sorted(made & needed)
        tensors = []
        for name in sorted(read & constants.keys()):
            tensor = TensorProto()
            tensor.CopyFrom(constants[name])
            tensor.name = name
            tensors.append(tensor)
        part = model_of(model, nodes, [values[name] for name in self._inputs], self._outputs, tensors)
        session = session_of(onnxruntime, part, spins=False)
        values.update({found.name: value_of(found) for found in session.get_outputs()})
        self._run = session.run

    def run(self, values: Values) -> None:
        results = self._run(self._outputs, {name: values[name] for name in self._inputs})
        values.update(zip(self._outputs, results, strict=True))


class _Recurrent:
    """A recurrent node. Its weights stay on the device if they are constants."""

    def __init__(self, node: NodeProto, constants: Mapping[str, TensorProto]) -> None:
        self._node, self._attributes = node, attributes_of(node)
        self._is_batch_first = self._attributes.get("layout") == 1
        keys = INPUTS[node.op_type]
        self._arrays: list[Any] = [None] * len(node.input)
        for at, name in enumerate(node.input):
            if name in constants:
                self._arrays[at] = numpy_helper.to_array(constants[name])
        self._given = [(at, name) for at, name in enumerate(node.input) if name and name not in constants]
        self._kept = None
        if all(keys[at] not in WEIGHTS for at, _ in self._given):
            kept = KeptNode(node, self._attributes, self._arrays)
            self._kept = kept if kept.is_usual else None
        self._results = [(at, name) for at, name in enumerate(node.output) if name]

    def run(self, values: Values) -> None:
        arrays = self._inputs(values)
        results = None if self._kept is None else self._kept.run(tuple(arrays))
        if results is None:
            node = self._node
            results = compute(node.op_type, node.name, self._attributes, arrays, len(node.output), None)
        for at, name in self._results:
            values[name] = results[at]

    def work(self, values: Values) -> float:
        """Return the floating-point operations after the first time step."""
        X, W, R = self._inputs(values)[:3]
        return _work_of(X.shape, W.size + R.size, batch_first=self._is_batch_first)

    def _inputs(self, values: Values) -> list[Any]:
        arrays = self._arrays.copy()
        for at, name in self._given:
            arrays[at] = values[name]
        return arrays


def _work_of(shape: Sequence[int], weights: int, *, batch_first: bool) -> float:
    N, T = shape[:2] if batch_first else shape[1::-1]
    return 2.0 * weights * N * max(0, T - 1)  # each weight takes part in one product for each row


def _declare(node: NodeProto, values: dict[str, ValueInfoProto], constants: Mapping[str, TensorProto]) -> float | None:
    """Add a recurrent node's outputs to the known values, and return its work; None if its sizes are not known."""
    X, W, R = node.input[:3]
    if X in constants:
        dtype, sizes = constants[X].data_type, list(constants[X].dims)
    else:
        tensor = values[X].type.tensor_type
        dtype, sizes = tensor.elem_type, [size.dim_value for size in tensor.shape.dim]  # 0: not known
    if len(sizes) != 3:
        sizes = [0, 0, 0]
    attributes = attributes_of(node)
    D, H = 1 + (attributes.get("direction") == "bidirectional"), attributes.get("hidden_size") or 0
    batch_first = attributes.get("layout") == 1
    first, second, _ = sizes
    if batch_first:
        shapes = [[first, second, D, H], [first, D, H], [first, D, H]]
    else:
        shapes = [[first, D, second, H], [D, second, H], [D, second, H]]
    for name, shape in zip(node.output, shapes, strict=False):
        values[name] = helper.make_tensor_value_info(name, dtype, [size or None for size in shape])
    if not first or not second or not constants.keys() >= {W, R}:
        return None
    weights = sum(math.prod(constants[name].dims) for name in (W, R))
    return _work_of((first, second), weights, batch_first=batch_first)
