"""Attributes of vkrnn.onnx's nodes: those that need several calls, malformed ones, unsupported ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkrnn
from comparison import assert_close
from onnx_nodes import GATES, INPUTS, Drawn, by_onnxruntime, by_vkrnn
from oracles import require
from tolerances import ONNX

onnx = require("onnx")

from onnx import AttributeProto, helper  # noqa: E402

from vkrnn.onnx import from_onnx, run_node  # noqa: E402

DIFFERING = {
    "RNN": ["Tanh", "Relu"],
    "GRU": ["Sigmoid", "Tanh", "HardSigmoid", "Relu"],
    "LSTM": ["Sigmoid", "Tanh", "Tanh", "HardSigmoid", "Sigmoid", "Relu"],
}


def differing(op: str, absent: frozenset[str] = frozenset(), **attributes: Any) -> Drawn:
    """Return a node whose directions have different activations."""
    return Drawn(op, (5, 3, 7, 4), "bidirectional", {"activations": DIFFERING[op], **attributes}, absent)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("absent", [set(), {"initial_h", "sequence_lens"}], ids=["all inputs", "fewer"])
def test_functions_of_each_direction(op: str, absent: set[str]) -> None:
    """Each direction has its own activations and becomes a call of its own."""
    drawn = differing(op, frozenset({"P"} | absent))
    device = vkrnn.Device("cpu (")
    assert_close(by_vkrnn(drawn.node, drawn.arrays, device=device), by_onnxruntime(drawn.node, drawn.arrays), ONNX)
    assert device.statistics()["calls"] == 2


@pytest.mark.parametrize("op", GATES)
def test_functions_of_each_direction_in_layout_1(op: str) -> None:
    """The same with the batch first, which onnxruntime does not support."""
    drawn = differing(op)
    arrays = drawn.arrays
    wanted = {name: np.moveaxis(array, -2, 0) for name, array in by_vkrnn(drawn.node, arrays).items()}
    for name in ("X", "initial_h", "initial_c"):
        if name in arrays:
            arrays[name] = arrays[name].swapaxes(0, 1)
    got = by_vkrnn(differing(op, layout=1).node, arrays)
    assert got.keys() == wanted.keys()
    for name, array in got.items():
        np.testing.assert_array_equal(array, wanted[name])


@pytest.mark.parametrize("functions", [["Sigmoid", "Tanh", "Tanh"], ["HardSigmoid", "Relu", "Tanh"]], ids="-".join)
@pytest.mark.parametrize("direction", ["reverse", "bidirectional"])
def test_coupled_gates(direction: str, functions: list[str]) -> None:
    """With input_forget, the forget gate is 1 minus the input gate, whatever its own weights are."""
    attributes = {"input_forget": 1, "activations": functions * (1 + (direction == "bidirectional"))}
    drawn = Drawn("LSTM", (5, 3, 7, 4), direction, attributes)
    assert_close(by_vkrnn(drawn.node, drawn.arrays), by_onnxruntime(drawn.node, drawn.arrays), ONNX)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_constants_of_hard_sigmoids(op: str, direction: str) -> None:
    """Each direction may have an alpha and a beta; the defaults are ONNX's, 0.2 and 0.5."""
    functions = {"RNN": ["HardSigmoid"], "GRU": ["HardSigmoid", "Tanh"], "LSTM": ["HardSigmoid", "Tanh", "Relu"]}[op]
    attributes = {
        "activations": functions * (1 + (direction == "bidirectional")),
        "activation_alpha": [1 / 6],
        "activation_beta": [0.5, 0.3][: 1 + (direction == "bidirectional")],
    }
    drawn = Drawn(op, (5, 3, 7, 4), direction, attributes)
    assert_close(by_vkrnn(drawn.node, drawn.arrays), by_onnxruntime(drawn.node, drawn.arrays), ONNX)


def test_constants_are_decimals() -> None:
    """ONNX stores constants in float32. They are read as the decimals that were written, such as 0.2."""
    attributes = {"activations": ["HardSigmoid", "Tanh"], "activation_alpha": [0.2], "clip": 0.7}
    drawn = Drawn("GRU", (5, 3, 7, 4), "forward", attributes)
    descriptor = from_onnx(drawn.node, drawn.arrays).descriptor
    assert (descriptor.hard_sigmoid_alpha, descriptor.hard_sigmoid_beta, descriptor.clip) == (0.2, 0.5, 0.7)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [("RNN", {}), ("GRU", {}), ("GRU", {"linear_before_reset": 1}), ("LSTM", {}), ("LSTM", {"input_forget": 1})],
    ids=["RNN", "GRU", "GRU reset after", "LSTM", "LSTM coupled"],
)
@pytest.mark.parametrize("clip", [0.3, 1.5, np.inf])
def test_clip(op: str, attributes: dict[str, int], clip: float) -> None:
    """The gates' inputs are clipped, peepholes and biases included."""
    drawn = Drawn(op, (5, 3, 7, 4), "bidirectional", {**attributes, "clip": clip})
    assert_close(by_vkrnn(drawn.node, drawn.arrays), by_onnxruntime(drawn.node, drawn.arrays), ONNX)


def raw(name: str, **fields: Any) -> Any:
    """Return an attribute with these fields, valid or not."""
    return AttributeProto(name=name, **fields)


MALFORMED = [
    (helper.make_attribute("activations", [1, 2, 3]), TypeError, "expected a list of strings, got [1, 2, 3]"),
    (helper.make_attribute("activations", 3), TypeError, "expected a list of strings, got 3"),
    (helper.make_attribute("activations", "Tanh"), TypeError, "expected a list of strings, got 'Tanh'"),
    (helper.make_attribute("activation_alpha", 0.5), TypeError, "expected a list of numbers, got 0.5"),
    (helper.make_attribute("activation_beta", ["x"]), TypeError, "expected a list of numbers, got ['x']"),
    (helper.make_attribute("clip", "x"), TypeError, "expected a number, got 'x'"),
    (helper.make_attribute("direction", 1), TypeError, "expected a string, got 1"),
    (helper.make_attribute("hidden_size", 4.0), TypeError, "expected an integer, got 4.0"),
    (helper.make_attribute("layout", "x"), TypeError, "expected an integer, got 'x'"),
    (
        raw("direction", type=AttributeProto.TENSOR, t=onnx.TensorProto()),
        TypeError,
        "expected a string, got TensorProto",
    ),
    (raw("direction", s=b"reverse"), TypeError, "expected an attribute with a type, got one without"),
    (raw("direction", type=AttributeProto.STRING, s=b"\xff"), ValueError, "expected UTF-8, got b'\\xff'"),
    (raw("activations", type=AttributeProto.STRINGS, strings=[b"\xff"]), ValueError, "expected UTF-8, got b'\\xff'"),
    (
        raw("direction", type=AttributeProto.STRING, ref_attr_name="way"),
        ValueError,
        "expected a value, got a reference to the attribute 'way' of a function",
    ),
]


@pytest.mark.parametrize(
    ("attribute", "error", "message"), MALFORMED, ids=[f"{case[0].name}-{case[2]}" for case in MALFORMED]
)
def test_malformed(attribute: Any, error: type[Exception], message: str) -> None:
    """The message names an attribute of the wrong type, without a value or with undecodable bytes, and shows it."""
    drawn = Drawn("LSTM", (5, 3, 7, 4))
    node = drawn.node
    kept = [other for other in node.attribute if other.name != attribute.name]
    del node.attribute[:]
    node.attribute.extend([*kept, attribute])
    with pytest.raises(error) as caught:
        run_node(node, drawn.arrays)
    assert str(caught.value) == f"[LSTM] {attribute.name}: {message}"


def test_attribute_twice() -> None:
    """A node with two attributes of one name is refused."""
    node = Drawn("LSTM", (5, 3, 7, 4)).node
    node.attribute.append(helper.make_attribute("hidden_size", 5))
    with pytest.raises(ValueError) as caught:
        run_node(node, Drawn("LSTM", (5, 3, 7, 4)).arrays)
    assert str(caught.value) == "[LSTM] hidden_size: expected one attribute of this name, got two"


# Unsupported attributes and inputs


def bad(op: str, message: str, error: type[Exception] = NotImplementedError, /, **changes: Any) -> Any:
    """Return a parameter: wrong attributes or inputs, and the whole message."""
    return pytest.param(op, changes, error, message, id=f"{op}-{'-'.join(changes)}")


REFUSED = [
    bad("LSTM", "[LSTM 'here'] clip: expected a number above 0, got -3", ValueError, clip=-3.0),
    bad("GRU", "[GRU 'here'] clip: expected a number above 0, got 0", ValueError, clip=0.0),
    bad("RNN", "[RNN 'here'] clip: expected a number above 0, got nan", ValueError, clip=np.nan),
    bad(
        "LSTM",
        "[LSTM 'here'] input_forget: expected 0 with Tanh as the gates' function, got 1: only for Sigmoid, and "
        "HardSigmoid with beta 0.5, is 1 - f(p) = f(-p)",
        input_forget=1,
        activations=["Tanh", "Tanh", "Tanh"],
    ),
    bad(
        "LSTM",
        "[LSTM 'here'] input_forget: expected 0 with HardSigmoid and activation_beta 0.3 as the gates' function, got "
        "1: only for Sigmoid, and HardSigmoid with beta 0.5, is 1 - f(p) = f(-p)",
        input_forget=1,
        activations=["HardSigmoid", "Tanh", "Tanh"],
        activation_beta=[0.3],
    ),
    bad("LSTM", "[LSTM 'here'] input_forget: expected 0 or 1, got 2", ValueError, input_forget=2),
    bad("GRU", "[GRU 'here'] linear_before_reset: expected 0 or 1, got -1", ValueError, linear_before_reset=-1),
    bad(
        "RNN",
        "[RNN 'here'] activations: expected Relu, Tanh, Sigmoid or HardSigmoid, got Softsign",
        activations=["Softsign"],
    ),
    bad(
        "GRU",
        "[GRU 'here'] activation_alpha: expected one value for every HardSigmoid of a direction, got 0.3 and 0.2",
        activations=["HardSigmoid", "HardSigmoid"],
        activation_alpha=[0.3],
    ),
    bad(
        "LSTM",
        "[LSTM 'here'] activation_beta: expected one value for every HardSigmoid of a direction, got 0.5 and 0.0",
        activations=["HardSigmoid", "Tanh", "HardSigmoid"],
        activation_beta=[0.5, 0.0],
    ),
    bad(
        "RNN",
        "[RNN 'here'] activation_alpha: expected a finite number, got inf",
        ValueError,
        activations=["HardSigmoid"],
        activation_alpha=[np.inf],
    ),
    bad(
        "RNN",
        "[RNN 'here'] output_sequence: expected an attribute of RNN since opset 7: activation_alpha, activation_beta, "
        "activations, clip, direction, hidden_size, layout",
        output_sequence=1,
    ),
    bad("LSTM", "[LSTM 'here'] activations: expected 3 functions, got 1", ValueError, activations=["Tanh"]),
    bad(
        "LSTM",
        "[LSTM 'here'] direction: expected forward, reverse or bidirectional, got 'both'",
        ValueError,
        direction="both",
    ),
    bad("GRU", "[GRU 'here'] layout: expected 0 or 1, got 2", ValueError, layout=2),
    bad("GRU", "[GRU 'here'] hidden_size: expected 4 as the last axis of R, got 5", ValueError, hidden_size=5),
    bad("GRU", "[GRU 'here'] R: expected shape [D, 3H, H] = [1, 12, 4], got [3, 4, 4]", ValueError, R=(3, 4, 4)),
    bad(
        "GRU",
        "[GRU 'here'] R: expected shape [D, 3H, H] = [1, 12, 4], got [1, 4, 12] (it looks transposed)",
        ValueError,
        R=(1, 4, 12),
    ),
    bad(
        "LSTM",
        "[LSTM 'here'] W: expected shape [D, 4H, I] = [1, 16, 7], got [1, 7, 16] (it looks transposed)",
        ValueError,
        W=(1, 7, 16),
    ),
    bad("RNN", "[RNN 'here'] W: expected shape [D, H, I] = [1, 4, 7], got [2, 4, 7]", ValueError, W=(2, 4, 7)),
    bad("LSTM", "[LSTM 'here'] B: expected shape [D, 8H] = [1, 32], got [1, 16]", ValueError, B=(1, 16)),
    bad("LSTM", "[LSTM 'here'] P: expected shape [D, 3H] = [1, 12], got [1, 16]", ValueError, P=(1, 16)),
    bad(
        "LSTM",
        "[LSTM 'here'] initial_c: expected shape [D, N, H] = [1, 3, 4], got [3, 1, 4]",
        ValueError,
        initial_c=(3, 1, 4),
    ),
    bad(
        "LSTM",
        "[LSTM 'here'] initial_h: expected shape [N, D, H] = [5, 1, 4], got [1, 3, 4]",
        ValueError,
        layout=1,
        sequence_lens=np.ones(5, np.int32),
        initial_h=(1, 3, 4),
    ),
    bad("RNN", "[RNN 'here'] X: expected 3 axes [T, N, I], got [5, 7]", ValueError, X=(5, 7)),
    bad(
        "RNN",
        "[RNN 'here'] sequence_lens: expected shape [N] = [3], got [2]",
        ValueError,
        sequence_lens=np.array([1, 2], np.int32),
    ),
    bad(
        "RNN",
        "[RNN 'here'] sequence_lens: expected 0 to T = 5, got 6",
        ValueError,
        sequence_lens=np.array([1, 6, 2], np.int32),
    ),
    bad("RNN", "[RNN 'here'] sequence_lens: expected integers, got float32", TypeError, sequence_lens=(3,)),
]


@pytest.mark.parametrize(("op", "changes", "error", "message"), REFUSED)
def test_refused(op: str, changes: dict[str, Any], error: type[Exception], message: str) -> None:
    """The message uses ONNX's name of the attribute or input."""
    inputs = {name: value for name, value in changes.items() if name in INPUTS}
    attributes = {name: value for name, value in changes.items() if name not in INPUTS}
    drawn = Drawn(op, (5, 3, 7, 4), attributes.pop("direction", "forward"))
    if drawn.direction == "both":
        drawn.direction = "forward"
        attributes["direction"] = "both"
    node = drawn.node
    node.name = "here"
    kept = [attribute for attribute in node.attribute if attribute.name not in attributes]
    made = [helper.make_attribute(name, value) for name, value in attributes.items()]
    del node.attribute[:]
    node.attribute.extend([*kept, *made])
    given = drawn.arrays
    for name, value in inputs.items():
        given[name] = np.ones(value, np.float32) if isinstance(value, tuple) else value
    with pytest.raises(error) as caught:
        run_node(node, given)
    assert str(caught.value) == message


def test_other_nodes_and_inputs() -> None:
    """Other operators, too few inputs and a missing input are refused."""
    drawn = Drawn("GRU", (5, 3, 7, 4), absent=frozenset({"B"}))
    arrays = drawn.arrays
    with pytest.raises(ValueError) as caught:
        run_node(helper.make_node("Relu", ["X"], ["Y"]), arrays)
    assert str(caught.value) == "[run_node] node: expected one of RNN, GRU, LSTM, DynamicQuantizeLSTM, got Relu"
    with pytest.raises(ValueError) as caught:
        run_node(drawn.node, [arrays["X"]])
    assert str(caught.value) == "[run_node] inputs: expected 6 for X, W, R, sequence_lens, initial_h, got 1"
    del arrays["W"]
    with pytest.raises(ValueError) as caught:
        run_node(drawn.node, arrays)
    assert str(caught.value) == "[GRU] W: expected an array, got none"
    with pytest.raises(ValueError) as caught:
        run_node(drawn.node, [None, None, None, None, None, None])
    assert str(caught.value) == "[GRU] W: expected an array, got none"
