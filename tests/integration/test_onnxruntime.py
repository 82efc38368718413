"""Options of ONNX that MPSGraph lacks, against onnxruntime: clip, hard-sigmoid constants, peepholes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vkrnn
import vkrnn.reference
from oracles import require
from tolerances import ONNX

onnx = require("onnx")
onnxruntime = require("onnxruntime")

Array = NDArray[Any]

T, N, I, H = 6, 3, 5, 4
OPERATORS = {"single_gate_rnn": "RNN", "gru": "GRU", "lstm": "LSTM"}
GATES = {"single_gate_rnn": 1, "gru": 3, "lstm": 4}
# The positions of vkrnn's gates in ONNX's W, R and B (i, o, f, c), and in P (i, o, f).
BLOCKS = {"single_gate_rnn": [0], "gru": [0, 1, 2], "lstm": [0, 2, 3, 1]}
# The activation properties for ONNX's f, g, h.
FUNCTIONS: dict[str, list[list[str]]] = {
    "single_gate_rnn": [["activation"]],
    "gru": [["update_gate_activation", "reset_gate_activation"], ["output_gate_activation"]],
    "lstm": [
        ["input_gate_activation", "forget_gate_activation", "output_gate_activation"],
        ["cell_gate_activation"],
        ["activation"],
    ],
}
SPELT = {"Relu": "relu", "Tanh": "tanh", "Sigmoid": "sigmoid", "HardSigmoid": "hard_sigmoid"}


def by_onnxruntime(cell: str, arrays: dict[str, Array], attributes: dict[str, Any]) -> dict[str, Array]:
    """Return the outputs of one node."""
    inputs = ["X", "W", "R", "B", "", "h0", *(["c0", "P"] if cell == "lstm" else [])]
    outputs = ["Y", "Y_h", *(["Y_c"] if cell == "lstm" else [])]
    node = onnx.helper.make_node(OPERATORS[cell], inputs, outputs, hidden_size=H, **attributes)
    given = [onnx.helper.make_tensor_value_info(name, 1, array.shape) for name, array in arrays.items()]
    found = [onnx.helper.make_tensor_value_info(name, 1, None) for name in outputs]
    graph = onnx.helper.make_graph([node], "graph", given, found)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 14)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return dict(zip(outputs, session.run(None, arrays), strict=True))


def in_vkrnns_order(cell: str, array: Array) -> Array:
    """Return an array with the gates of its first axis moved from ONNX's order to vkrnn's."""
    return array.reshape(GATES[cell], H, *array.shape[1:])[BLOCKS[cell]].reshape(array.shape)


@pytest.mark.parametrize("clip", [0.0, 0.4, 2.0])
@pytest.mark.parametrize(
    ("cell", "functions", "options"),
    [
        ("single_gate_rnn", ("Tanh",), {}),
        ("single_gate_rnn", ("HardSigmoid",), {}),
        ("gru", ("HardSigmoid", "Tanh"), {}),
        ("gru", ("Sigmoid", "HardSigmoid"), {"reset_after": True}),
        ("lstm", ("Sigmoid", "Tanh", "Tanh"), {}),
        ("lstm", ("HardSigmoid", "Relu", "HardSigmoid"), {}),
    ],
)
def test_options(cell: str, functions: tuple[str, ...], options: dict[str, bool], clip: float) -> None:
    """Both vkrnn and its reference agree with onnxruntime."""
    rng = np.random.default_rng(5)
    G = GATES[cell]
    shapes = {"X": (T, N, I), "W": (1, G * H, I), "R": (1, G * H, H), "B": (1, 2 * G * H), "h0": (1, N, H)}
    shapes |= {"c0": (1, N, H), "P": (1, 3 * H)} if cell == "lstm" else {}
    arrays = {name: rng.uniform(-1.5, 1.5, shape).astype(np.float32) for name, shape in shapes.items()}
    hard = [name == "HardSigmoid" for name in functions]
    alpha, beta = 1 / 3, 0.375
    attributes: dict[str, Any] = {"activations": list(functions)}
    attributes |= {"clip": clip} if clip else {}
    if any(hard):
        attributes |= {"activation_alpha": [alpha] * sum(hard), "activation_beta": [beta] * sum(hard)}
    if cell == "gru":
        attributes["linear_before_reset"] = int(options.get("reset_after", False))
    wanted = by_onnxruntime(cell, arrays, attributes)

    of_input, of_recurrence = (in_vkrnns_order(cell, half) for half in np.split(arrays["B"][0], 2))
    given = {
        "source": arrays["X"],
        "input_weight": in_vkrnns_order(cell, arrays["W"][0]),
        "recurrent_weight": in_vkrnns_order(cell, arrays["R"][0]),
        "bias": of_input + of_recurrence,
        "init_state": arrays["h0"],
    }
    if options.get("reset_after"):
        given["bias"][-H:] = of_input[-H:]
        given["secondary_bias"] = of_recurrence[-H:]
    properties: dict[str, Any] = {"hard_sigmoid_alpha": alpha, "hard_sigmoid_beta": beta, "clip": clip, **options}
    for names, function in zip(FUNCTIONS[cell], functions, strict=True):
        properties |= dict.fromkeys(names, SPELT[function])
    if cell == "lstm":
        of_i, of_o, of_f = np.split(arrays["P"][0], 3)
        given |= {"init_cell": arrays["c0"], "peephole": np.concatenate([of_i, of_f, np.zeros_like(of_i), of_o])}
        properties |= {"output_peephole_new_cell": True, "produce_cell": True}
    kind = {"single_gate_rnn": vkrnn.SingleGateRNNDescriptor, "gru": vkrnn.GRUDescriptor, "lstm": vkrnn.LSTMDescriptor}
    for module, where in ((vkrnn, {"device": "cpu ("}), (vkrnn.reference, {})):
        got = getattr(module, cell)(**given, descriptor=kind[cell](**properties), **where)
        np.testing.assert_allclose(got.output, wanted["Y"][:, 0], rtol=0, atol=ONNX * max(1, abs(wanted["Y"]).max()))
        if cell == "lstm":
            scale = max(1, abs(wanted["Y_c"]).max())
            np.testing.assert_allclose(got.cell_output[-1], wanted["Y_c"][0], rtol=0, atol=ONNX * scale)
