"""Attributes of ONNX's recurrent nodes: their checked values and the descriptors that they require."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from vkrnn.descriptors import Activation, GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor

__all__ = ["QUANTIZED", "attributes_of", "descriptors_of", "flag", "hidden_size_of", "place"]

QUANTIZED = "DynamicQuantizeLSTM"
"""The LSTM of the domain com.microsoft whose W and R are in eight bits."""

_DESCRIPTORS = {
    "RNN": SingleGateRNNDescriptor,
    "GRU": GRUDescriptor,
    "LSTM": LSTMDescriptor,
    QUANTIZED: LSTMDescriptor,
}
# For each of ONNX's functions f, g, h: its default, and the gates that use it.
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
_FUNCTIONS[QUANTIZED] = _FUNCTIONS["LSTM"]
_ACTIVATIONS = {
    "relu": Activation.RELU,
    "tanh": Activation.TANH,
    "sigmoid": Activation.SIGMOID,
    "hardsigmoid": Activation.HARD_SIGMOID,
}
# HardSigmoid's constants: ONNX's name, the descriptor's name, and the default of both.
_HARD_SIGMOID = (("activation_alpha", "hard_sigmoid_alpha", 0.2), ("activation_beta", "hard_sigmoid_beta", 0.5))

_INTEGER, _NUMBER, _STRING = (numbers.Integral, "an integer"), (numbers.Real, "a number"), (str, "a string")
_NUMBERS, _STRINGS = (numbers.Real, "a list of numbers"), (str, "a list of strings")
_COMMON: dict[str, tuple[type, str]] = {
    "activation_alpha": _NUMBERS,
    "activation_beta": _NUMBERS,
    "activations": _STRINGS,
    "clip": _NUMBER,
    "direction": _STRING,
    "hidden_size": _INTEGER,
    "layout": _INTEGER,
}
_ATTRIBUTES = {
    "RNN": _COMMON,
    "GRU": _COMMON | {"linear_before_reset": _INTEGER},
    "LSTM": _COMMON | {"input_forget": _INTEGER},
}
_ATTRIBUTES[QUANTIZED] = {key: kind for key, kind in _ATTRIBUTES["LSTM"].items() if key != "layout"}


def place(op: str, name: str, of: str) -> str:
    """Return the beginning of messages about an attribute or input of the node called `name`."""
    return f"[{op} '{name}'] {of}:" if name else f"[{op}] {of}:"


def attributes_of(node: Any) -> dict[str, Any]:
    """Return the attributes of an ``onnx.NodeProto`` by name, as Python's numbers, strings and lists.

    Raises
    ------
    ValueError, TypeError
        If an attribute stands there twice, has no value, or a value of another type than ONNX says.
    """
    from onnx import AttributeProto, helper  # noqa: PLC0415 - an extra

    found: dict[str, Any] = {}
    for attribute in node.attribute:
        key = attribute.name
        where = place(node.op_type, node.name, key)
        if key in found:
            raise ValueError(f"{where} expected one attribute of this name, got two")
        if attribute.ref_attr_name:
            raise ValueError(
                f"{where} expected a value, got a reference to the attribute {attribute.ref_attr_name!r} of a function"
            )
        if attribute.type == AttributeProto.UNDEFINED:
            raise TypeError(f"{where} expected an attribute with a type, got one without")
        found[key] = helper.get_attribute_value(attribute)
    return _checked(node.op_type, node.name, found)


def _checked(op: str, name: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes that are not None, their types checked and bytes decoded."""
    found = {}
    for key, value in attributes.items():
        if value is None:
            continue
        where, known = place(op, name, key), _ATTRIBUTES[op]
        if key not in known:
            listed = ", ".join(sorted(known))
            since = "" if op == QUANTIZED else " since opset 7"
            raise NotImplementedError(f"{where} expected an attribute of {op}{since}: {listed}")
        kind, words = known[key]
        decoded = _decoded(where, value)
        several = isinstance(decoded, list)
        right = all(
            isinstance(item, kind) and not isinstance(item, bool) for item in (decoded if several else [decoded])
        )
        if several != words.startswith("a list") or not right:
            raise TypeError(f"{where} expected {words}, got {_shown(decoded)}")
        found[key] = decoded
    return found


def _decoded(where: str, value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_decoded(where, item) for item in value]
    if not isinstance(value, bytes):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{where} expected UTF-8, got {value!r}") from None


def _shown(value: Any) -> str:
    """Return a value as messages show it: plain values as they are, others by their type."""
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    plain = value.item() if isinstance(value, np.generic) else value
    return repr(plain) if isinstance(plain, (str, int, float)) else type(plain).__name__


def flag(op: str, name: str, given: Mapping[str, Any], key: str) -> bool:
    """Return an attribute that is 0, which is the default, or 1."""
    value = given.get(key, 0)
    if value not in (0, 1):
        raise ValueError(f"{place(op, name, key)} expected 0 or 1, got {value}")
    return bool(value)


def hidden_size_of(op: str, name: str, given: Mapping[str, Any], H: int) -> int:
    """Return H, which the attribute must equal if it is there."""
    value = given.get("hidden_size", H)
    if value != H:
        raise ValueError(f"{place(op, name, 'hidden_size')} expected {H} as the last axis of R, got {value}")
    return H


def descriptors_of(op: str, name: str, attributes: Mapping[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """Return the attributes, checked, and the descriptors of the calls that compute the node.

    There is one descriptor, or two of one direction each if the directions differ in their activations. Where
    attributes come from ONNX's evaluator, None stands for absent ones.

    Raises
    ------
    NotImplementedError
        If the operations here cannot do what an attribute asks for.
    ValueError, TypeError
        If an attribute has a value that ONNX does not know.
    """
    given = _checked(op, name, attributes)
    direction = given.get("direction", "forward")
    if direction not in ("forward", "reverse", "bidirectional"):
        raise ValueError(
            f"{place(op, name, 'direction')} expected forward, reverse or bidirectional, got {direction!r}"
        )
    both = direction == "bidirectional"
    each = list(_activations(op, name, given, 2 if both else 1))
    options: dict[str, Any] = {"clip": _clip(op, name, given)}
    if op == "GRU" and flag(op, name, given, "linear_before_reset"):
        options["reset_after"] = True
    if "input_forget" in _ATTRIBUTES[op] and flag(op, name, given, "input_forget"):
        _require_coupled(op, name, each)
    make = _DESCRIPTORS[op]
    if both and each[0] != each[1]:
        return given, [make(**options, **each[0]), make(**options, **each[1], reverse=True)]
    return given, [make(**options, **each[0], reverse=direction == "reverse", bidirectional=both)]


def _activations(op: str, name: str, given: Mapping[str, Any], directions: int) -> Iterator[dict[str, Any]]:
    """Yield the directions' activations. Functions that have alpha or beta consume these in order."""
    where = place(op, name, "activations")
    default = [function for function, _ in _FUNCTIONS[op]]
    functions = list(given.get("activations", default * directions))
    if op == "RNN" and functions == ["Tanh", "Tanh"]:  # the default for either number of directions
        functions = default * directions
    if len(functions) != len(default) * directions:
        raise ValueError(f"{where} expected {len(default) * directions} functions, got {len(functions)}")
    constants = {key: iter(given.get(key, ())) for key, _, _ in _HARD_SIGMOID}
    left = iter(functions)
    for _ in range(directions):
        found: dict[str, Any] = {}
        for _, gates in _FUNCTIONS[op]:
            function = next(left)
            activation = _ACTIVATIONS.get(function.lower())
            if activation is None:
                raise NotImplementedError(f"{where} expected Relu, Tanh, Sigmoid or HardSigmoid, got {function}")
            if activation is Activation.HARD_SIGMOID:
                for key, option, usual in _HARD_SIGMOID:
                    value = _decimal(op, name, key, next(constants[key], usual))
                    if found.setdefault(option, value) != value:
                        raise NotImplementedError(
                            f"{place(op, name, key)} expected one value for every HardSigmoid of a direction, got "
                            f"{found[option]} and {value}"
                        )
            found |= dict.fromkeys(gates, activation)
        yield found


def _clip(op: str, name: str, given: Mapping[str, Any]) -> float:
    """Return the descriptor's `clip`, which is 0 for none."""
    value = given.get("clip", math.inf)
    if not value > 0:
        raise ValueError(f"{place(op, name, 'clip')} expected a number above 0, got {value:g}")
    return 0.0 if math.isinf(value) else _decimal(op, name, "clip", value)


def _decimal(op: str, name: str, key: str, value: float) -> float:
    """Return the shortest decimal with the same float32 value, such as 0.2 and not 0.200000003."""
    if not math.isfinite(value):
        raise ValueError(f"{place(op, name, key)} expected a finite number, got {value:g}")
    return float(str(np.float32(value)))


def _require_coupled(op: str, name: str, each: list[dict[str, Any]]) -> None:
    """Check that 1 - f(p) = f(-p), by which the forget gate of a coupled LSTM is computed."""
    for options in each:
        activation = options["input_gate_activation"]
        if activation is Activation.HARD_SIGMOID and options["hard_sigmoid_beta"] != 0.5:
            got = f"HardSigmoid and activation_beta {options['hard_sigmoid_beta']}"
        elif activation not in (Activation.SIGMOID, Activation.HARD_SIGMOID):
            got = activation.name.title()
        else:
            continue
        raise NotImplementedError(
            f"{place(op, name, 'input_forget')} expected 0 with {got} as the gates' function, got 1: only for "
            "Sigmoid, and HardSigmoid with beta 0.5, is 1 - f(p) = f(-p)"
        )
