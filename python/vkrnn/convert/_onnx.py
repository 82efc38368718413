"""Translation of ONNX's recurrent nodes to calls of vkrnn with their weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from vkrnn import operations
from vkrnn._ops.layer import Layer
from vkrnn.convert._onnx_attributes import QUANTIZED, attributes_of, descriptors_of, flag, hidden_size_of, place
from vkrnn.results import Outputs

__all__ = [
    "INPUTS",
    "OPERATIONS",
    "WEIGHTS",
    "Part",
    "RecurrentNode",
    "dequantized_along",
    "from_onnx",
    "in_source_order",
    "require_shape",
]

Array: TypeAlias = npt.NDArray[Any]

_LSTM = ("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
_QUANTIZATION = ("W_scale", "W_zero_point", "R_scale", "R_zero_point")
INPUTS = {
    "RNN": ("X", "W", "R", "B", "sequence_lens", "initial_h"),
    "GRU": ("X", "W", "R", "B", "sequence_lens", "initial_h"),
    "LSTM": _LSTM,
    QUANTIZED: (*_LSTM, *_QUANTIZATION),
}
"""The inputs of each operator, in order."""

WEIGHTS = frozenset(("W", "R", "B", "P", *_QUANTIZATION))
"""Those of the inputs that are weights."""

OPERATIONS: Mapping[str, Callable[..., Outputs[Any]]] = {
    "RNN": operations.single_gate_rnn,
    "GRU": operations.gru,
    "LSTM": operations.lstm,
    QUANTIZED: operations.lstm,
}
"""The function of each operator."""

# The position of each gate in ONNX's order: i, o, f, c of an LSTM, and z, r, h of a GRU.
_GATES = {"RNN": (0,), "GRU": (0, 1, 2), "LSTM": (0, 2, 3, 1), QUANTIZED: (0, 2, 3, 1)}


def require_shape(where: str, array: Array, letters: str, shape: tuple[int, ...]) -> None:
    """Raise a ValueError if the array is of another shape."""
    if array.shape != shape:
        hint = " (it looks transposed)" if (*array.shape[:-2], *array.shape[:-3:-1]) == shape else ""
        raise ValueError(f"{where} expected shape {letters} = {list(shape)}, got {list(array.shape)}{hint}")


def in_source_order(output: Array, lengths: Array | None) -> Array:
    """Return the output [T, N, H] of a reversed call with row 0, which belongs to a sequence's last row, at its end."""
    if lengths is None:
        return output[::-1].copy()
    T, N, _ = output.shape
    steps = np.arange(T)[:, None]
    return output[np.where(steps < lengths, lengths - 1 - steps, steps), np.arange(N)]


@dataclass(frozen=True)
class Part:
    """One call that computes a node or one of its two directions.

    `arguments` are the weights by the operation's names, and `columns` is the part's slice of [N, DH].
    """

    descriptor: Any
    arguments: Mapping[str, Array]
    columns: slice


@dataclass(frozen=True)
class RecurrentNode:
    """A recurrent node without its data. `parts` has one element, or one per direction."""

    op: str
    name: str
    directions: int
    hidden: int
    batch_first: bool
    parts: tuple[Part, ...]

    @staticmethod
    def read(op: str, name: str, attributes: Mapping[str, Any], inputs: Mapping[str, Array]) -> RecurrentNode:
        """Read the attributes, where None means absent, and those of the weights that are given.

        Raises
        ------
        NotImplementedError
            If the operations here cannot do what an attribute asks for.
        ValueError, TypeError
            If an attribute has a value that ONNX does not know, or a shape is wrong.
        """
        given, descriptors = descriptors_of(op, name, attributes)
        directions = 2 if given.get("direction") == "bidirectional" else 1
        batch_first = flag(op, name, given, "layout")
        if op == QUANTIZED:
            inputs = {**inputs, **{key: _dequantized(name, key, directions, inputs) for key in "WR" if key in inputs}}
        weights = _Weights(op, name, directions, inputs, coupled=flag(op, name, given, "input_forget"))
        hidden = hidden_size_of(op, name, given, weights.hidden)
        if len(descriptors) == directions == 2:
            parts = [weights.part(descriptor, d, d + 1) for d, descriptor in enumerate(descriptors)]
        else:
            parts = [weights.part(descriptors[0], 0, directions)]
        return RecurrentNode(op, name, directions, hidden, batch_first, tuple(parts))

    def state(self, array: Array, key: str, batch: int | None = None) -> Array:
        """Return initial_h or initial_c, as `key` says, as [N, DH]."""
        D, H = self.directions, self.hidden
        N = batch if batch is not None else (array.shape[0 if self.batch_first else 1] if array.ndim == 3 else 0)
        letters, shape = ("[N, D, H]", (N, D, H)) if self.batch_first else ("[D, N, H]", (D, N, H))
        require_shape(place(self.op, self.name, key), array, letters, shape)
        return (array if self.batch_first else array.swapaxes(0, 1)).reshape(N, D * H)


def _dequantized(name: str, key: str, D: int, inputs: Mapping[str, Array]) -> Array:
    """Return W or R, as `key` says, of a node whose weights are quantized by direction or by direction and column.

    They are [D, I, 4H] and [D, H, 4H] there. The array returned is an LSTM's: [D, 4H, I] or [D, 4H, H].
    """
    quantized = inputs[key]
    if quantized.dtype not in (np.int8, np.uint8):
        raise TypeError(f"{place(QUANTIZED, name, key)} expected dtype int8 or uint8, got {quantized.dtype}")
    rows = quantized.shape[1] if quantized.ndim > 1 else 0
    R = inputs.get("R", quantized)
    H = R.shape[1] if R.ndim > 1 else 0
    letters = "[D, I, 4H]" if key == "W" else "[D, H, 4H]"
    require_shape(place(QUANTIZED, name, key), quantized, letters, (D, rows, 4 * H))
    if f"{key}_scale" not in inputs:
        raise ValueError(f"{place(QUANTIZED, name, f'{key}_scale')} expected an array, got none")
    scale = inputs[f"{key}_scale"]
    zero = inputs.get(f"{key}_zero_point", np.zeros(scale.shape, quantized.dtype))
    if zero.dtype != quantized.dtype:
        where = place(QUANTIZED, name, f"{key}_zero_point")
        raise TypeError(f"{where} expected dtype {quantized.dtype} like {key}, got {zero.dtype}")
    for part, array in (("scale", scale), ("zero_point", zero)):
        if array.shape not in ((D,), (D, 4 * H)):
            raise ValueError(
                f"{place(QUANTIZED, name, f'{key}_{part}')} expected shape [D] = {[D]} or [D, 4H] = {[D, 4 * H]}, got "
                f"{list(array.shape)}"
            )
    columns = (array.reshape(D, 1, -1) for array in (scale, zero))
    return np.ascontiguousarray(dequantized(quantized, *columns).swapaxes(1, 2))


def dequantized(quantized: Array, scale: Array, zero: Array) -> Array:
    """Return quantized numbers as floats. Scales and zeros have shapes that broadcast."""
    exact: Array = quantized.astype(np.float32) - zero.astype(np.float32)
    return (exact * scale).astype(scale.dtype)


def dequantized_along(
    quantized: Array, scale: Array, zero: Array | None = None, *, axis: int = 1, block_size: int = 0
) -> Array:
    """Return the result of ONNX's DequantizeLinear.

    A scale and a zero are for the whole tensor, for one index along the axis or for a block of indices.
    """

    def spread(array: Array) -> Array:
        if block_size:
            return np.repeat(array, block_size, axis).take(range(quantized.shape[axis]), axis)
        shape = [1] * quantized.ndim
        if array.size > 1:
            shape[axis] = -1
        return array.reshape(shape)

    return dequantized(quantized, spread(scale), np.zeros((), np.float32) if zero is None else spread(zero))


class _Weights:
    """The weights of a node, with checked shapes."""

    def __init__(self, op: str, name: str, directions: int, inputs: Mapping[str, Array], *, coupled: bool) -> None:
        for required in ("W", "R"):
            if required not in inputs:
                raise ValueError(f"{place(op, name, required)} expected an array, got none")
        self.op, self.directions, self.gates = op, directions, len(_GATES[op])
        self.W, self.R, self.B, self.P = inputs["W"], inputs["R"], inputs.get("B"), inputs.get("P")
        D, G = directions, self.gates
        rows, columns = (0, 0, *self.R.shape)[-2:]
        self.hidden = H = rows if columns == G * rows else columns  # a transposed R or W is refused below
        rows, columns = (0, 0, *self.W.shape)[-2:]
        I = rows if columns == G * H else columns
        axis = f"{G}H" if G > 1 else "H"
        for key, letters, shape in (
            ("R", f"[D, {axis}, H]", (D, G * H, H)),
            ("W", f"[D, {axis}, I]", (D, G * H, I)),
            ("B", f"[D, {2 * G}H]", (D, 2 * G * H)),
            ("P", "[D, 3H]", (D, 3 * H)),
        ):
            if key in inputs:
                require_shape(place(op, name, key), inputs[key], letters, shape)

        if coupled:
            self._couple()

    def _couple(self) -> None:
        """Make the forget gate 1 minus the input gate, which is f(-p) where the input gate is f(p)."""
        D, H = self.directions, self.hidden
        self.W, self.R = (_coupled(array.reshape(D, 4, -1)).reshape(array.shape) for array in (self.W, self.R))
        if self.B is not None:
            self.B = _coupled(self.B.reshape(2 * D, 4, H)).reshape(self.B.shape)
        if self.P is not None:
            self.P = _coupled(self.P.reshape(D, 3, H)).reshape(self.P.shape)

    def part(self, descriptor: Any, first: int, last: int) -> Part:
        """Return the call of the directions from `first` up to but not including `last`."""
        D, G, H = last - first, self.gates, self.hidden
        W, R = self.W[first:last], self.R[first:last]
        B, P = (None if array is None else array[first:last] for array in (self.B, self.P))
        recurrent = self._ordered(R.reshape(D, G, H, H), 1).reshape(D, G * H, H)
        found = {
            "recurrent_weight": recurrent if D == 2 else recurrent[0],
            "input_weight": self._ordered(W.reshape(D, G, H, -1), 1).reshape(D * G * H, -1),
        }
        if B is not None:
            both = self._ordered(B.reshape(D, 2, G, H), 2)
            bias = both[:, 0] + both[:, 1]
            if getattr(descriptor, "reset_after", False):  # the candidate's recurrent bias is within the reset
                bias[:, 2] = both[:, 0, 2]
                found["secondary_bias"] = both[:, 1, 2].reshape(-1)
            found["bias"] = bias.reshape(-1)
        if P is not None:
            of_input, of_output, of_forget = np.moveaxis(P.reshape(D, 3, H), 1, 0)
            peephole = np.zeros((D, 4, H), P.dtype)  # gates i, f, z, o
            peephole[:, 0], peephole[:, 1], peephole[:, 3] = of_input, of_forget, of_output
            found["peephole"] = peephole.reshape((2, 4 * H) if D == 2 else 4 * H)
            descriptor = replace(descriptor, output_peephole_new_cell=bool(of_output.any()))
        return Part(descriptor, found, slice(first * H, last * H))

    def _ordered(self, array: Array, axis: int) -> Array:
        order = _GATES[self.op]
        return array if list(order) == sorted(order) else array.take(order, axis)


def _coupled(array: Array) -> Array:
    """Return a copy of [D, gates, ...] in which gate f, the third in ONNX's order, is minus gate i, the first."""
    copy = array.copy()
    copy[:, 2] = -copy[:, 0]
    return copy


def from_onnx(node: Any, initializers: Mapping[str, Array] | Iterable[Any]) -> Layer:
    """Return a recurrent ONNX node as a function with its weights and descriptor.

    Parameters
    ----------
    node : onnx.NodeProto
        An ``RNN``, ``GRU`` or ``LSTM``: `single_gate_rnn`, `gru` or `lstm`. Or a ``DynamicQuantizeLSTM``: `lstm` with
        dequantized weights.
    initializers : mapping of str to numpy.ndarray, or iterable of onnx.TensorProto
        The graph's constants, ``model.graph.initializer``. W and R must be among them; B, P, initial_h and initial_c
        are taken if they are.

    Returns
    -------
    Layer
        Its arguments are ``recurrent_weight``, ``input_weight``, and where the node has them ``bias``,
        ``secondary_bias``, ``peephole``, ``init_state``, ``init_cell``. The source and the results of the layer are
        [T, N, ...], or [N, T, ...] with the node's ``layout`` 1, in the time order of `vkrnn`; `vkrnn.onnx.run_node`
        takes and returns what ONNX does.

    Raises
    ------
    TypeError
        If ``node`` is no node, or an attribute has a value of the wrong type.
    NotImplementedError
        If one call cannot do what the node asks for: activations other than Relu, Tanh, Sigmoid and HardSigmoid, two
        values of alpha or beta in a direction, other activations in the other direction, ``input_forget`` with Relu or
        Tanh.
    ValueError
        If the node is another one, an attribute is malformed, W or R is no initializer, or a shape is wrong.
    """
    if not hasattr(node, "op_type"):
        raise TypeError(f"[from_onnx] node: expected an onnx.NodeProto, got {type(node).__name__}")
    op, name = node.op_type, node.name
    if op not in INPUTS:
        raise ValueError(f"[from_onnx] node: expected one of {', '.join(INPUTS)}, got {op}")
    known = initializers if isinstance(initializers, Mapping) else _arrays(initializers)
    inputs = {key: known[given] for key, given in zip(INPUTS[op], node.input, strict=False) if given in known}
    attributes = attributes_of(node)
    read = RecurrentNode.read(op, name, attributes, inputs)
    if len(read.parts) > 1:
        raise NotImplementedError(
            f"{place(op, name, 'activations')} expected the same functions in both directions for one call, got "
            f"{attributes['activations']}; vkrnn.onnx.run_node takes them"
        )
    [part] = read.parts
    states = {"initial_h": "init_state", "initial_c": "init_cell"}
    given_states = {argument: read.state(inputs[key], key) for key, argument in states.items() if key in inputs}
    return Layer(OPERATIONS[op], {**part.arguments, **given_states}, part.descriptor, batch_first=read.batch_first)


def _arrays(initializers: Iterable[Any]) -> dict[str, Array]:
    from onnx import numpy_helper  # noqa: PLC0415 - an extra

    return {tensor.name: numpy_helper.to_array(tensor) for tensor in initializers}
