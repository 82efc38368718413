"""ONNX's recurrent nodes in the words of vkrnn: attributes to a descriptor, weights to a call's arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vkrnn import operations
from vkrnn._layer import Layer
from vkrnn.descriptors import Activation, GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor
from vkrnn.results import Outputs

__all__ = ["INPUTS", "OPERATIONS", "RecurrentNode", "attributes_of", "from_onnx", "place", "require_shape"]

Array: TypeAlias = npt.NDArray[Any]

INPUTS = {
    "RNN": ("X", "W", "R", "B", "sequence_lens", "initial_h"),
    "GRU": ("X", "W", "R", "B", "sequence_lens", "initial_h"),
    "LSTM": ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"),
}
"""The inputs of each operator, in order."""

OPERATIONS: Mapping[str, Callable[..., Outputs[Any]]] = {
    "RNN": operations.single_gate_rnn,
    "GRU": operations.gru,
    "LSTM": operations.lstm,
}
"""The function of each operator."""

# For each gate of the operations here, its place among ONNX's: i, o, f, c of an LSTM, z, r, h of a GRU.
_GATES = {"RNN": (0,), "GRU": (0, 1, 2), "LSTM": (0, 2, 3, 1)}
_DESCRIPTORS = {"RNN": SingleGateRNNDescriptor, "GRU": GRUDescriptor, "LSTM": LSTMDescriptor}
# For each of ONNX's functions f, g, h: the one by default, and the gates it belongs to.
_FUNCTIONS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "RNN": (("Tanh", ("activation",)),),
    "GRU": (
        ("Sigmoid", ("update_gate_activation", "reset_gate_activation")),
        ("Tanh", ("output_gate_activation",)),
    ),
    "LSTM": (
        ("Sigmoid", ("input_gate_activation", "forget_gate_activation", "output_gate_activation")),
        ("Tanh", ("cell_gate_activation",)),
        ("Tanh", ("activation",)),
    ),
}
_ACTIVATIONS = {
    "relu": Activation.RELU,
    "tanh": Activation.TANH,
    "sigmoid": Activation.SIGMOID,
    "hardsigmoid": Activation.HARD_SIGMOID,
}
_HARD_SIGMOID = {"activation_alpha": 0.2, "activation_beta": 0.5}  # ONNX's defaults, and the only ones here
_KNOWN = {"activations", *_HARD_SIGMOID, "clip", "direction", "hidden_size", "layout"}
_ATTRIBUTES = {"RNN": _KNOWN, "GRU": _KNOWN | {"linear_before_reset"}, "LSTM": _KNOWN | {"input_forget"}}


def place(op: str, name: str, of: str) -> str:
    """Return what messages about an attribute or input of the node called `name` begin with."""
    return f"[{op} '{name}'] {of}:" if name else f"[{op}] {of}:"


def require_shape(where: str, array: Array, letters: str, shape: tuple[int, ...]) -> None:
    """Raise a ValueError if the array is of another shape."""
    if array.shape != shape:
        raise ValueError(f"{where} expected shape {letters} = {list(shape)}, got {list(array.shape)}")


def attributes_of(node: Any) -> dict[str, Any]:
    """Return the attributes of an ``onnx.NodeProto`` by name, as Python's numbers, strings and lists."""
    from onnx import helper  # noqa: PLC0415 - an extra

    return {attribute.name: _text(helper.get_attribute_value(attribute)) for attribute in node.attribute}


def _text(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return [_text(item) for item in value] if isinstance(value, (list, tuple)) else value


@dataclass(frozen=True)
class RecurrentNode:
    """A recurrent node without its data.

    `arguments` are those of the operation that are weights. `output_peephole` [D, H] is what ONNX multiplies by the new
    cell in an LSTM's output gate, for which the operation has no argument; None where it is absent or all zeros.
    """

    op: str
    name: str
    descriptor: Any
    directions: int
    hidden: int
    batch_first: bool
    arguments: Mapping[str, Array]
    output_peephole: Array | None

    @staticmethod
    def read(op: str, name: str, attributes: Mapping[str, Any], inputs: Mapping[str, Array]) -> RecurrentNode:
        """Read the attributes, None standing for absent ones, and the inputs W, R, B, P that are there.

        Raises
        ------
        NotImplementedError
            If the operations here cannot do what an attribute asks for.
        ValueError
            If an attribute has a value that ONNX does not know, or a shape is wrong.
        """
        given = {key: value for key, value in attributes.items() if value is not None}
        _refuse(op, name, given)
        options = _direction(op, name, given) | _activations(op, name, given)
        directions = 2 if options["bidirectional"] else 1
        if given.get("linear_before_reset", 0):
            options["reset_after"] = True
        layout = given.get("layout", 0)
        if layout not in (0, 1):
            raise ValueError(f"{place(op, name, 'layout')} expected 0 or 1, got {layout}")

        weights = _Weights(op, name, directions, inputs)
        hidden_size = given.get("hidden_size", weights.hidden)
        if hidden_size != weights.hidden:
            raise ValueError(
                f"{place(op, name, 'hidden_size')} expected {weights.hidden} as the last axis of R, got {hidden_size}"
            )
        arguments = weights.arguments(reset_after=options.get("reset_after", False))
        peephole, output_peephole = weights.peepholes()
        if peephole is not None:
            arguments["peephole"] = peephole
        descriptor = _DESCRIPTORS[op](**options)
        return RecurrentNode(op, name, descriptor, directions, weights.hidden, layout == 1, arguments, output_peephole)

    def state(self, array: Array, key: str, batch: int | None = None) -> Array:
        """Return initial_h or initial_c, which `key` says, as the operations have it, [N, DH]."""
        D, H = self.directions, self.hidden
        N = batch if batch is not None else (array.shape[0 if self.batch_first else 1] if array.ndim == 3 else 0)
        letters, shape = ("[N, D, H]", (N, D, H)) if self.batch_first else ("[D, N, H]", (D, N, H))
        require_shape(place(self.op, self.name, key), array, letters, shape)
        return (array if self.batch_first else array.swapaxes(0, 1)).reshape(N, D * H)


def _refuse(op: str, name: str, given: Mapping[str, Any]) -> None:
    for key in given:
        if key not in _ATTRIBUTES[op]:
            known = ", ".join(sorted(_ATTRIBUTES[op]))
            raise NotImplementedError(f"{place(op, name, key)} expected an attribute of {op} since opset 7: {known}")
    if "clip" in given:
        raise NotImplementedError(f"{place(op, name, 'clip')} there is no clipping here, got {given['clip']:g}")
    if given.get("input_forget", 0):
        raise NotImplementedError(f"{place(op, name, 'input_forget')} input and forget gate are never coupled here")


def _direction(op: str, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    direction = given.get("direction", "forward")
    if direction not in ("forward", "reverse", "bidirectional"):
        raise ValueError(
            f"{place(op, name, 'direction')} expected forward, reverse or bidirectional, got {direction!r}"
        )
    return {"reverse": direction == "reverse", "bidirectional": direction == "bidirectional"}


def _activations(op: str, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the descriptor's activations; alpha and beta are consumed in order by the functions that have them."""
    where = place(op, name, "activations")
    default = [function for function, _ in _FUNCTIONS[op]]
    directions = 2 if given.get("direction") == "bidirectional" else 1
    functions = list(given.get("activations", default * directions))
    if op == "RNN" and functions == ["Tanh", "Tanh"]:  # the default for either number of directions
        functions = default * directions
    if len(functions) != len(default) * directions:
        raise ValueError(f"{where} expected {len(default) * directions} functions, got {len(functions)}")
    constants = {key: iter(given.get(key, ())) for key in _HARD_SIGMOID}
    found = []
    for function in functions:
        activation = _ACTIVATIONS.get(function.lower())
        if activation is None:
            raise NotImplementedError(f"{where} expected Relu, Tanh, Sigmoid or HardSigmoid, got {function}")
        if activation is Activation.HARD_SIGMOID:
            for key, expected in _HARD_SIGMOID.items():
                value = next(constants[key], expected)
                if not math.isclose(value, expected, rel_tol=1e-6):  # attributes are float32
                    raise NotImplementedError(
                        f"{place(op, name, key)} expected {expected} for HardSigmoid, got {value:g}"
                    )
        found.append(activation)
    if found[: len(default)] != found[-len(default) :]:
        raise NotImplementedError(f"{where} expected the same functions in both directions, got {functions}")
    gates = [gates for _, gates in _FUNCTIONS[op]]
    return {gate: activation for group, activation in zip(gates, found, strict=False) for gate in group}


class _Weights:
    """The weights of a node, their shapes checked."""

    def __init__(self, op: str, name: str, directions: int, inputs: Mapping[str, Array]) -> None:
        for required in ("W", "R"):
            if required not in inputs:
                raise ValueError(f"{place(op, name, required)} expected an array, got none")
        self.op, self.directions, self.gates = op, directions, len(_GATES[op])
        self.W, self.R, self.B, self.P = inputs["W"], inputs["R"], inputs.get("B"), inputs.get("P")
        self.hidden = self.R.shape[-1] if self.R.ndim else 0
        D, G, H = directions, self.gates, self.hidden
        I = self.W.shape[-1] if self.W.ndim else 0
        axis = f"{G}H" if G > 1 else "H"
        for key, letters, shape in (
            ("R", f"[D, {axis}, H]", (D, G * H, H)),
            ("W", f"[D, {axis}, I]", (D, G * H, I)),
            ("B", f"[D, {2 * G}H]", (D, 2 * G * H)),
            ("P", "[D, 3H]", (D, 3 * H)),
        ):
            if key in inputs:
                require_shape(place(op, name, key), inputs[key], letters, shape)

    def arguments(self, *, reset_after: bool) -> dict[str, Array]:
        """Return the weights and biases in the layout of the operations."""
        D, G, H = self.directions, self.gates, self.hidden
        recurrent = self._ordered(self.R.reshape(D, G, H, H), 1).reshape(D, G * H, H)
        found = {
            "recurrent_weight": recurrent if D == 2 else recurrent[0],
            "input_weight": self._ordered(self.W.reshape(D, G, H, -1), 1).reshape(D * G * H, -1),
        }
        if self.B is not None:
            both = self._ordered(self.B.reshape(D, 2, G, H), 2)
            bias = both[:, 0] + both[:, 1]
            if reset_after:  # the candidate's recurrent bias is within the reset
                bias[:, 2] = both[:, 0, 2]
                found["secondary_bias"] = both[:, 1, 2].reshape(-1)
            found["bias"] = bias.reshape(-1)
        return found

    def peepholes(self) -> tuple[Array | None, Array | None]:
        """Return the operation's peephole, and the output gate's, which reads the new cell; None where all zeros."""
        if self.P is None:
            return None, None
        D, H = self.directions, self.hidden
        of_input, of_output, of_forget = np.moveaxis(self.P.reshape(D, 3, H), 1, 0)
        peephole = np.zeros((D, 4, H), self.P.dtype)  # gates i, f, z, o
        peephole[:, 0], peephole[:, 1] = of_input, of_forget
        return peephole.reshape((2, 4 * H) if D == 2 else 4 * H), of_output if of_output.any() else None

    def _ordered(self, array: Array, axis: int) -> Array:
        order = _GATES[self.op]
        return array if list(order) == sorted(order) else array.take(order, axis)


def from_onnx(node: Any, initializers: Mapping[str, Array] | Iterable[Any]) -> Layer:
    """Return a recurrent ONNX node as a function with its weights and descriptor.

    Parameters
    ----------
    node : onnx.NodeProto
        An ``RNN``, ``GRU`` or ``LSTM``: `single_gate_rnn`, `gru` or `lstm`.
    initializers : mapping of str to numpy.ndarray, or iterable of onnx.TensorProto
        The graph's constants, ``model.graph.initializer``. W and R must be among them; B, P, initial_h and initial_c
        are taken if they are.

    Returns
    -------
    Layer
        Its arguments are ``recurrent_weight``, ``input_weight``, and where the node has them ``bias``,
        ``secondary_bias``, ``peephole``, ``init_state``, ``init_cell``. The source and the results of the call are
        [T, N, ...] in the time order of `vkrnn`; `vkrnn.onnx.run_node` takes and returns what ONNX does.

    Raises
    ------
    TypeError
        If ``node`` is no node.
    NotImplementedError
        If the operation cannot do what the node asks for: ``clip``, ``input_forget``, activations other than Relu,
        Tanh, Sigmoid and HardSigmoid (0.2, 0.5), other ones in the two directions, a peephole of the output gate.
    ValueError
        If the node is another one, W or R is no initializer, or a shape is wrong.
    """
    if not hasattr(node, "op_type"):
        raise TypeError(f"[from_onnx] node: expected an onnx.NodeProto, got {type(node).__name__}")
    op, name = node.op_type, node.name
    if op not in INPUTS:
        raise ValueError(f"[from_onnx] node: expected an RNN, GRU or LSTM, got {op}")
    known = initializers if isinstance(initializers, Mapping) else _arrays(initializers)
    inputs = {key: known[given] for key, given in zip(INPUTS[op], node.input, strict=False) if given in known}
    read = RecurrentNode.read(op, name, attributes_of(node), inputs)
    if read.output_peephole is not None:
        raise NotImplementedError(
            f"{place(op, name, 'P')} expected zeros for the output gate, whose peephole reads the new cell in ONNX and "
            "the cell before it in MPSGraph; vkrnn.onnx.run_node goes step by step"
        )
    states = {"initial_h": "init_state", "initial_c": "init_cell"}
    given_states = {argument: read.state(inputs[key], key) for key, argument in states.items() if key in inputs}
    return Layer(OPERATIONS[op], {**read.arguments, **given_states}, read.descriptor)


def _arrays(initializers: Iterable[Any]) -> dict[str, Array]:
    from onnx import numpy_helper  # noqa: PLC0415 - an extra

    return {tensor.name: numpy_helper.to_array(tensor) for tensor in initializers}
