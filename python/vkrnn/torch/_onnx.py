"""Calls of the operator `network` as ONNX's nodes LSTM, GRU and RNN, for both of torch.onnx's exporters.

Importing this module registers them. The exporter of programs finds a decomposition, and that of TorchScript a symbolic
function. `_Torch` and `_TorchScript` are the operations around the nodes, as each of the exporters writes them.
Operators of functions are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from vkrnn.convert._torch_layout import GATES, descriptor, torch_mode
from vkrnn.descriptors import Activation
from vkrnn.torch._network import Inputs, compute_shapes

__all__ = ["refuse_function", "require_peephole"]

_HAS_OPS = hasattr(torch.onnx, "ops")  # since PyTorch 2.8
_ORDER = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}  # of PyTorch's gates in ONNX
_FUNCTIONS = {
    "LSTM": (
        ("input_gate_activation", "output_gate_activation", "forget_gate_activation"),
        ("cell_gate_activation",),
        ("activation",),
    ),
    "GRU": (("update_gate_activation", "reset_gate_activation"), ("output_gate_activation",)),
    "RNN": (("activation",),),
}
_NAMES = {
    Activation.NONE: "Affine",
    Activation.RELU: "Relu",
    Activation.TANH: "Tanh",
    Activation.SIGMOID: "Sigmoid",
    Activation.HARD_SIGMOID: "HardSigmoid",
}


class _Torch:
    """Operations of PyTorch, which its exporter of programs translates."""

    def rows(self, tensor: Any, first: int, last: int) -> Any:
        return tensor[first:last]

    def cat(self, tensors: Sequence[Any]) -> Any:
        return torch.cat(list(tensors))

    def stack(self, tensors: Sequence[Any]) -> Any:
        return torch.stack(list(tensors))

    def sequence(self, output: Any) -> Any:
        """Return [T, D, N, H] as [T, N, DH]."""
        return output.transpose(1, 2).flatten(2)

    def node(self, kind: str, inputs: Sequence[Any], attributes: dict[str, Any]) -> Sequence[Any]:
        source, weight = inputs[:2]
        (T, N), D, H = source.shape[:2], weight.shape[0], attributes["hidden_size"]
        shapes = [(T, D, N, H), *[(D, N, H)] * (1 + (kind == "LSTM"))]
        found: Sequence[Any] = torch.onnx.ops.symbolic_multi_out(
            f"::{kind}", inputs, attributes, dtypes=[source.dtype] * len(shapes), shapes=shapes, version=14
        )
        return found


class _TorchScript:
    """Operations of ONNX, as symbolic functions write them into a graph."""

    def __init__(self, graph: Any) -> None:
        self._graph, self._helper = graph, torch.onnx.symbolic_helper

    def rows(self, tensor: Any, first: int, last: int) -> Any:
        return self._helper._slice_helper(self._graph, tensor, [0], [first], [last])  # noqa: SLF001

    def cat(self, tensors: Sequence[Any]) -> Any:
        return self._graph.op("Concat", *tensors, axis_i=0)

    def stack(self, tensors: Sequence[Any]) -> Any:
        unsqueeze = self._helper._unsqueeze_helper  # noqa: SLF001
        return self.cat([unsqueeze(self._graph, each, [0]) for each in tensors])

    def sequence(self, output: Any) -> Any:
        swapped = self._graph.op("Transpose", output, perm_i=[0, 2, 1, 3])
        return self._helper._reshape_helper(self._graph, swapped, torch.tensor([0, 0, -1]))  # noqa: SLF001

    def node(self, kind: str, inputs: Sequence[Any], attributes: dict[str, Any]) -> Sequence[Any]:
        none = self._helper._optional_input_placeholder_tensor(self._graph)  # noqa: SLF001
        given = [none if each is None else each for each in inputs]
        named = {f"{name}_{_letter(value)}": value for name, value in attributes.items()}
        found: Sequence[Any] = self._graph.op(kind, *given, **named, outputs=3 if kind == "LSTM" else 2)
        return found


def _letter(value: Any) -> str:
    """Return what torch.onnx calls an attribute's type."""
    first = value[0] if isinstance(value, list) else value
    return {str: "s", float: "f", int: "i"}[type(first)]


def _write(ops: Any, inputs: Inputs, units: int, directions: int) -> tuple[Any, ...]:
    """Write the nodes of all layers. Return the output, h_n and, of LSTMs, c_n."""
    H, D = units, directions
    kind = torch_mode(inputs.mode).split("_")[0]
    how = descriptor(inputs.mode, bidirectional=D == 2)
    attributes = _attributes(kind, how) | {"hidden_size": H, "direction": "bidirectional" if D == 2 else "forward"}
    each = inputs.each
    output, last = inputs.source, []
    for number in range(inputs.layers):
        weights = inputs.weights[number * each : (number + 1) * each]
        matrices = [_in_order(ops, weight, kind, H, D) for weight in weights[:2]]
        biases = [_in_order(ops, weight, kind, H, D) for weight in weights[2:4] if each >= 4]
        bias = ops.stack([ops.cat([half[d] for half in biases]) for d in range(D)]) if biases else None
        states = [
            None if state is None else ops.rows(state, number * D, (number + 1) * D)
            for state in (inputs.h_0, inputs.c_0)
        ]
        given = [output, *map(ops.stack, matrices), bias, None, *states[: 1 + (kind == "LSTM")]]
        if each % 2:
            given.append(_peephole(ops, weights[-1], H, D))
        found, *ends = ops.node(kind, given, attributes)
        output = ops.sequence(found)
        last.append(ends)
    return (output, *(ops.cat(states) for states in zip(*last, strict=True)))


def _peephole(ops: Any, weight: Any, H: int, D: int) -> Any:
    """Return the peepholes of the gates i, o and f, [D, 3H]."""
    gates = [[(d * 4 + gate) * H for gate in (0, 3, 1)] for d in range(D)]
    return ops.stack([ops.cat([ops.rows(weight, first, first + H) for first in firsts]) for firsts in gates])


def _in_order(ops: Any, weight: Any, kind: str, H: int, D: int) -> list[Any]:
    """Return a weight of each direction, with ONNX's order of the gates."""
    gates = len(_ORDER[kind])
    return [
        ops.cat([ops.rows(weight, (d * gates + gate) * H, (d * gates + gate + 1) * H) for gate in _ORDER[kind]])
        for d in range(D)
    ]


def _attributes(kind: str, how: Any) -> dict[str, Any]:
    """Return the attributes of a node that has the descriptor's options, in one direction."""
    names: list[str] = []
    numbers: dict[str, list[float]] = {"activation_alpha": [], "activation_beta": []}
    for options in _FUNCTIONS[kind]:
        first, *others = (Activation(getattr(how, option)) for option in options)
        for option, other in zip(options[1:], others, strict=True):
            if other != first:
                _refuse(option, f"ONNX's {kind} has one function for this gate and {options[0]}")
        names.append(_NAMES[first])
        if first in (Activation.HARD_SIGMOID, Activation.NONE):
            is_hard = first == Activation.HARD_SIGMOID
            numbers["activation_alpha"].append(how.hard_sigmoid_alpha if is_hard else 1.0)
            numbers["activation_beta"].append(how.hard_sigmoid_beta if is_hard else 0.0)
    D = 1 + how.bidirectional
    found: dict[str, Any] = {"activations": names * D}
    found |= {name: values * D for name, values in numbers.items() if values}
    if how.clip:
        found["clip"] = float(how.clip)
    if kind == "GRU":
        found["linear_before_reset"] = int(how.reset_after)
        if how.flip_z:
            _refuse("flip_z", "ONNX's GRU has no such option")
    for name in ("heads", "input_heads"):
        if getattr(how, name) > 1:
            _refuse(name, f"ONNX's {kind} has no heads")
    return found


def _refuse(what: str, why: str) -> None:
    raise NotImplementedError(f"[vkrnn.torch] torch.onnx.export: {what}: {why}")


def require_peephole(module: Any) -> None:
    """Raise NotImplementedError unless ONNX's LSTM has the peepholes of a module: those of i, f and o[t] alone."""
    if not module.descriptor.output_peephole_new_cell:
        _refuse("peephole", "ONNX's output gate reads c[t]: set output_peephole_new_cell=True")
    H = module.hidden_size
    for name, parameter in module.named_parameters(recurse=False):
        if name.startswith("peephole") and parameter[2 * H : 3 * H].any():
            _refuse("peephole", f"ONNX has none for gate g: set {name}[2H:3H] to zeros")


def _require_plain(given: dict[str, Any]) -> None:
    """Raise NotImplementedError for a call with arguments that ONNX's nodes lack."""
    for name, there in given.items():
        if there:
            _refuse(name, "ONNX's nodes have nothing for it")


def _decomposed(*given: Any) -> tuple[Any, ...]:
    """Return the results of `network` as the exporter of programs writes them. Elsewhere, only shapes are asked for."""
    shapes = compute_shapes(*given)
    if not torch.onnx.is_in_onnx_export():
        return shapes
    inputs = Inputs(*given)
    _require_plain(_beyond_nodes(inputs))
    if inputs.each % 2:
        _refuse("peephole", "its numbers are not known to this exporter: use dynamo=False")
    output, h_n, *c_n = _write(_Torch(), inputs, inputs.units, inputs.directions)
    return output, h_n, c_n[0] if c_n else shapes[2], shapes[3]


def _symbolic(graph: Any, *given: Any) -> tuple[Any, ...]:
    """Return the results of `network` as the exporter of TorchScript writes them."""
    helper = torch.onnx.symbolic_helper
    values: dict[str, Any] = {
        name: None if helper._is_none(each) else each  # noqa: SLF001
        for name, each in zip(Inputs._fields, given, strict=True)
    }
    for name in ("weights", "masks", "between", "zoneout_masks", "zoneout_cell_masks"):
        values[name] = None if values[name] is None else helper._unpack_list(values[name])  # noqa: SLF001
    for name, kind in (("mode", "s"), ("layers", "i"), ("trained", "i")):
        values[name] = helper._parse_arg(values[name], kind)  # noqa: SLF001
    inputs = Inputs(**values)
    _require_plain(_beyond_nodes(inputs))
    rows, H = helper._get_tensor_sizes(inputs.weights[1])  # noqa: SLF001
    D = rows // (GATES[torch_mode(inputs.mode)] * H)
    output, h_n, *c_n = _write(_TorchScript(graph), inputs, H, D)
    nothing = graph.op("SequenceEmpty")
    return output, h_n, c_n[0] if c_n else h_n, nothing


def _beyond_nodes(inputs: Inputs) -> dict[str, Any]:
    return {
        "recurrent_dropout": inputs.masks,
        "dropout in training": inputs.between,
        "zoneout": inputs.zoneout_masks or inputs.zoneout_cell_masks,
        "packed sequences": inputs.lengths is not None,
        "reset": inputs.reset is not None,
    }


def refuse_function(name: str, place: int, shapes: Callable[..., Any]) -> None:
    """Let both exporters refuse an operator of functions by the name of the cell, its argument at `place`.

    `shapes` computes the shapes of the results.
    """

    def refuse(cell: str) -> None:
        _refuse(cell, "only LSTM, GRU and RNN modules and cells can be exported")

    def decomposed(*given: Any) -> Any:
        if torch.onnx.is_in_onnx_export():
            refuse(given[place])
        return shapes(*given)

    def symbolic(_: Any, *given: Any) -> None:
        refuse(torch.onnx.symbolic_helper._parse_arg(given[place], "s"))  # noqa: SLF001

    if _HAS_OPS:
        operator = getattr(torch.ops.vkrnn, name).default
        torch._decomp.register_decomposition(operator)(decomposed)  # noqa: SLF001
    torch.onnx.register_custom_op_symbolic(f"vkrnn::{name}", symbolic, 14)


if _HAS_OPS:
    torch._decomp.register_decomposition(torch.ops.vkrnn.network.default)(_decomposed)  # noqa: SLF001
torch.onnx.register_custom_op_symbolic("vkrnn::network", _symbolic, 14)
