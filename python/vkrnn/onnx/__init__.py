"""ONNX's RNN, GRU and LSTM on vkrnn's devices, as single nodes and in whole models. Needs the package onnx.

`run_node` computes one node. `Backend` runs a model: vkrnn computes the recurrent nodes, and ONNX's own evaluator
computes all others in NumPy. `OPERATORS` are the operators for that evaluator. They include DynamicQuantizeLSTM, which
is an LSTM with weights in eight bits that onnxruntime makes.

>>> import numpy as np
>>> from onnx import helper
>>> from vkrnn.onnx import run_node
>>> node = helper.make_node("GRU", ["X", "W", "R"], ["Y", "Y_h"], hidden_size=4)
>>> X, W, R = (np.ones(shape, np.float32) for shape in [(5, 3, 7), (1, 12, 7), (1, 12, 4)])
>>> Y, Y_h = run_node(node, [X, W, R])
>>> Y.shape, Y_h.shape
((5, 1, 3, 4), (1, 3, 4))

All dtypes of ONNX's operators work: float32, float64, float16 and bfloat16. `docs/onnx.md` says what is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from vkrnn import _core
from vkrnn._base.packages import missing
from vkrnn._interop.foreign import as_numpy
from vkrnn.convert._onnx import (
    INPUTS,
    OPERATIONS,
    WEIGHTS,
    Part,
    RecurrentNode,
    dequantized_along,
    from_onnx,
    in_source_order,
    require_shape,
)
from vkrnn.convert._onnx_attributes import QUANTIZED, attributes_of, place
from vkrnn.devices import DeviceLike, resolve
from vkrnn.onnx._evaluator import require_right
from vkrnn.onnx._graph import nodes_of
from vkrnn.onnx._kept import KeptNode
from vkrnn.results import LSTMOutputs

try:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper
    from onnx.backend.base import Backend as _Backend
    from onnx.backend.base import BackendRep as _BackendRep
    from onnx.inliner import inline_local_functions
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun
except ImportError as error:
    raise missing("vkrnn.onnx", error, "onnx") from error

__all__ = [
    "GRU",
    "LSTM",
    "OPERATORS",
    "RNN",
    "Backend",
    "BackendRep",
    "DynamicQuantizeLSTM",
    "from_onnx",
    "run_node",
]

Array = npt.NDArray[Any]
Inputs = Mapping[str, Any] | Sequence[Any]


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
    return _run(node.op_type, node.name, attributes_of(node), arrays, len(node.output), device)


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


def _run(
    op: str,
    name: str,
    attributes: Mapping[str, Any],
    arrays: Iterable[Any],
    outputs: int,
    device: DeviceLike | None,
) -> tuple[Array, ...]:
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


_Key = tuple[str, tuple[str, ...], tuple[str, ...]]


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
        results = _run(node.op_type, node.name, attributes, inputs, len(node.output), None)
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

    op_domain = "com.microsoft"


OPERATORS = [RNN, GRU, LSTM, DynamicQuantizeLSTM]
"""The argument ``new_ops`` of `onnx.reference.ReferenceEvaluator`. They run on the default device."""


def _with_shapes(model: ModelProto) -> ModelProto:
    """Return the model, or a copy with the types and shapes that ONNX's check requires.

    Any shape will do, because the check does not compare it with a tensor.
    """
    if all(_is_complete(value) for value in (*model.graph.input, *model.graph.output)):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    for value in copy.graph.output:
        if value.type.WhichOneof("value") is None:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    for value in (*copy.graph.input, *copy.graph.output):
        if value.type.WhichOneof("value") == "tensor_type":
            value.type.tensor_type.shape.SetInParent()
    return copy


def _is_complete(value: ValueInfoProto) -> bool:
    kind = value.type.WhichOneof("value")
    return kind is not None and (kind != "tensor_type" or value.type.tensor_type.HasField("shape"))


def _weights_of(node: NodeProto) -> list[str] | None:
    """Return the names of a recurrent node's weights; None for another node."""
    domains = (DynamicQuantizeLSTM.op_domain,) if node.op_type == QUANTIZED else ("", "ai.onnx")
    if node.op_type not in INPUTS or node.domain not in domains:
        return None
    return [name for key, name in zip(INPUTS[node.op_type], node.input, strict=False) if key in WEIGHTS and name]


def _dequantize_weights(graph: GraphProto) -> None:
    """Replace each DequantizeLinear of constants by a constant if a recurrent node has its output as a weight."""
    weights = {name for node, _ in nodes_of(graph) for name in _weights_of(node) or ()}
    for node, scope in nodes_of(graph):
        given = [name for name in node.input if name]
        options = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        if (
            (node.op_type, node.domain) == ("DequantizeLinear", "")
            and node.output[0] in weights
            and scope.constants.keys() >= set(given)
            and options.keys() <= {"axis", "block_size"}
        ):
            arrays = [numpy_helper.to_array(scope.constants[name]) for name in given]
            tensor = numpy_helper.from_array(dequantized_along(*arrays, **options))
            node.CopyFrom(helper.make_node("Constant", [], list(node.output), node.name, value=tensor))


class BackendRep(_BackendRep):
    """A model that `Backend.prepare` has prepared to run on a device.

    Attributes
    ----------
    device : Device
    """

    def __init__(self, evaluator: ReferenceEvaluator, device: DeviceLike) -> None:
        self.device = resolve(device, "[Backend]")
        self._evaluator = evaluator

    def run(self, inputs: Inputs, **kwargs: Any) -> tuple[Array, ...]:  # noqa: ARG002 - the interface has them
        """Return the model's outputs, in its order.

        Parameters
        ----------
        inputs : sequence of arrays, or mapping of str to arrays
            In the order of the model's inputs, or by their names.

        Raises
        ------
        ValueError
            If the number of inputs is wrong. A node may raise other errors.
        """
        names = self._evaluator.input_names
        if not isinstance(inputs, Mapping):
            if len(inputs) != len(names):
                raise ValueError(f"[Backend] inputs: expected {len(names)} for {', '.join(names)}, got {len(inputs)}")
            inputs = dict(zip(names, inputs, strict=True))
        with self.device:
            return tuple(self._evaluator.run(None, dict(inputs)))


class Backend(_Backend):
    """ONNX's interface for backends. RNN, GRU and LSTM run on a device, everything else in ONNX's own evaluator.

    ``device`` is a `Device`, its position in `devices()` or part of its name. The default is ONNX's ``"CPU"``, which is
    the CPU device.

    Examples
    --------
    >>> import numpy as np
    >>> from onnx import helper
    >>> node = helper.make_node("RNN", ["X", "W", "R"], ["Y"], hidden_size=4)
    >>> X, W, R = (np.ones(shape, np.float32) for shape in [(5, 3, 7), (1, 4, 7), (1, 4, 4)])
    >>> Backend.run_node(node, [X, W, R])[0].shape
    (5, 1, 3, 4)
    """

    @classmethod
    def prepare(cls, model: ModelProto, device: DeviceLike = "CPU", **kwargs: Any) -> BackendRep:
        """Check the model and prepare it to run on the device.

        Raises
        ------
        onnx.checker.ValidationError
            If ONNX's own check fails. As in onnxruntime, inputs and outputs may lack shapes, and outputs types.
        ValueError, TypeError
            If an attribute of a recurrent node is malformed.
        NotImplementedError
            If ONNX's evaluator computes another node wrong. The message begins with its operator and its name.
        """
        super().prepare(_with_shapes(model), "CPU", **kwargs)
        # Inside functions of the model, the evaluator would use its own operators.
        inlined = inline_local_functions(model)
        require_right(inlined)
        _dequantize_weights(inlined.graph)
        constant: dict[_Key, bool] = {}
        for node, scope in nodes_of(inlined.graph):
            weights = _weights_of(node)
            if weights is not None:
                attributes_of(node)
                # Two branches may have equal names.
                constant[_key(node)] = scope.constants.keys() >= set(weights) and constant.get(_key(node), True)
        kept = frozenset(key for key, is_constant in constant.items() if is_constant)
        operators = [type(operator.__name__, (operator,), {"constant": kept}) for operator in OPERATORS]
        return BackendRep(ReferenceEvaluator(inlined, new_ops=operators), device)

    @classmethod
    def run_node(
        cls, node: NodeProto, inputs: Inputs, device: DeviceLike = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Array, ...]:
        """Check and compute one recurrent node; see `vkrnn.onnx.run_node`."""
        super().run_node(node, inputs, "CPU", outputs_info, **kwargs)
        return run_node(node, inputs, device=device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether there is a device of that name."""
        try:
            resolve(device, "[Backend]")
        except (ValueError, _core.DeviceError):
            return False
        return True
