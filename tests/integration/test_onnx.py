"""onnxruntime as an oracle of the forward passes: all three cells, three directions, activations, peephole.

ONNX's gates stand in another order (LSTM i, o, f, c; GRU z, r, h), and of its three peephole vectors that of the output
gate reads the new cell, where MPSGraph's four all read the cell before: only those of i and f can be compared.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vkrnn
from comparison import assert_close
from tolerances import ONNX
from vkrnn import GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor

Array = NDArray[Any]
Arrays = dict[str, Array]

onnxruntime = pytest.importorskip("onnxruntime")
helper = pytest.importorskip("onnx.helper")

SIZES = [(5, 3, 7, 4), (1, 1, 1, 1), (9, 2, 5, 17)]
NAMES = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "hard_sigmoid": "HardSigmoid"}
DIRECTIONS = ("forward", "reverse", "bidirectional")
# For each of ONNX's gates, its place among MPSGraph's.
ORDER = {"RNN": (0,), "LSTM": (0, 3, 1, 2), "GRU": (0, 1, 2)}


def some(rng: np.random.Generator, *shape: int) -> Array:
    """Draw an array."""
    return rng.uniform(-1, 1, shape).astype(np.float32)


def draw(op: str, sizes: tuple[int, int, int, int], direction: str) -> Arrays:
    """Return the arguments of the call, in MPSGraph's layout; R, W, b and p per direction first."""
    T, N, I, H = sizes
    D, G = 1 + (direction == "bidirectional"), len(ORDER[op])
    rng = np.random.default_rng([T, H, G, DIRECTIONS.index(direction)])
    arrays = {"source": some(rng, T, N, I), "init_state": some(rng, N, D * H)}
    arrays["recurrent_weight"] = some(rng, D, G * H, H) / np.float32(np.sqrt(H))
    arrays["input_weight"] = some(rng, D, G * H, I) / np.float32(np.sqrt(I))
    arrays["bias"] = some(rng, D, G * H)
    if op == "LSTM":
        arrays["init_cell"] = some(rng, N, D * H)
    return arrays


def onnx_gates(op: str, array: Array) -> Array:
    """Reorder the gates on axis 1."""
    blocks = np.split(array, len(ORDER[op]), axis=1)
    return np.concatenate([blocks[gate] for gate in ORDER[op]], axis=1)


def run_onnx(op: str, arrays: Arrays, direction: str, activations: list[str], **attributes: Any) -> Arrays:
    """Return ONNX's Y (and the cell's last state) in MPSGraph's layout and order."""
    D, _, H = arrays["recurrent_weight"].shape
    N = arrays["source"].shape[1]
    second = np.zeros_like(arrays["bias"])
    if "secondary_bias" in arrays:
        second[:, 2 * H :] = arrays["secondary_bias"].reshape(D, H)
    inputs = {
        "X": arrays["source"],
        "W": onnx_gates(op, arrays["input_weight"]),
        "R": onnx_gates(op, arrays["recurrent_weight"]),
        "B": np.concatenate([onnx_gates(op, arrays["bias"]), second], axis=1),
        "": None,  # all sequences have the same length
        "initial_h": arrays["init_state"].reshape(N, D, H).swapaxes(0, 1),
    }
    if op == "LSTM":
        inputs["initial_c"] = arrays["init_cell"].reshape(N, D, H).swapaxes(0, 1)
        if "peephole" in arrays:  # i, f, z, o -> i, o, f
            inputs["P"] = np.concatenate([np.split(arrays["peephole"], 4, axis=1)[g] for g in (0, 3, 1)], axis=1)
    outputs = ["Y", "Y_h", "Y_c"][: 3 if op == "LSTM" else 2]
    node = helper.make_node(
        op, list(inputs), outputs, hidden_size=H, direction=direction, activations=activations * D, **attributes
    )
    fed = {name: np.ascontiguousarray(array) for name, array in inputs.items() if array is not None}
    declared = [helper.make_tensor_value_info(name, 1, array.shape) for name, array in fed.items()]
    results = [helper.make_tensor_value_info(name, 1, None) for name in outputs]
    graph = helper.make_graph([node], op, declared, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    Y, *last = session.run(None, fed)
    if direction == "reverse":
        Y = Y[::-1]
    found = {"output": Y.transpose(0, 2, 1, 3).reshape(len(Y), N, D * H)}
    if op == "LSTM":
        found["last cell"] = last[1].swapaxes(0, 1).reshape(N, D * H)
    return found


def mpsgraph_layout(arrays: Arrays) -> Arrays:
    """Return the arguments as the functions take them: [2, GH, H] and the directions one after the other."""
    D, _, _ = arrays["recurrent_weight"].shape
    flat = {"input_weight": (-1, arrays["input_weight"].shape[-1]), "bias": (-1,), "peephole": (-1,)}
    if D == 1:
        flat["recurrent_weight"] = arrays["recurrent_weight"].shape[1:]
    return {name: array.reshape(flat.get(name, array.shape)) for name, array in arrays.items()}


def options(direction: str) -> dict[str, bool]:
    """Return the descriptor's options of a direction."""
    return {} if direction == "forward" else {direction: True}


every_size = pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "x".join(map(str, sizes)))
every_direction = pytest.mark.parametrize("direction", DIRECTIONS)


@every_size
@every_direction
@pytest.mark.parametrize("activation", NAMES)
def test_single_gate_rnn(sizes: tuple[int, int, int, int], direction: str, activation: str) -> None:
    arrays = draw("RNN", sizes, direction)
    descriptor = SingleGateRNNDescriptor(activation=activation, **options(direction))
    got = vkrnn.single_gate_rnn(**mpsgraph_layout(arrays), descriptor=descriptor)
    assert_close(got._asdict(), run_onnx("RNN", arrays, direction, [NAMES[activation]]), ONNX)


# f of the gates i, o, f; g of the candidate; h of the cell.
LSTM_ACTIVATIONS = [("sigmoid", "tanh", "tanh"), ("hard_sigmoid", "tanh", "relu"), ("sigmoid", "relu", "sigmoid")]


@every_size
@every_direction
@pytest.mark.parametrize("peephole", [False, True], ids=["", "peephole"])
@pytest.mark.parametrize("activations", LSTM_ACTIVATIONS, ids="-".join)
def test_lstm(
    sizes: tuple[int, int, int, int], direction: str, activations: tuple[str, str, str], *, peephole: bool
) -> None:
    arrays = draw("LSTM", sizes, direction)
    H = sizes[3]
    if peephole:
        vectors = some(np.random.default_rng(H), len(arrays["bias"]), 4 * H)
        vectors[:, 2 * H :] = 0  # of the candidate, and of the output gate
        arrays["peephole"] = vectors
    gate, candidate, cell = activations
    descriptor = LSTMDescriptor(
        produce_cell=True,
        input_gate_activation=gate,
        forget_gate_activation=gate,
        output_gate_activation=gate,
        cell_gate_activation=candidate,
        activation=cell,
        **options(direction),
    )
    output, cells = vkrnn.lstm(**mpsgraph_layout(arrays), descriptor=descriptor)
    last = np.concatenate([cells[-1, :, :H], cells[0, :, H:]], axis=-1)
    wanted = run_onnx("LSTM", arrays, direction, [NAMES[name] for name in activations])
    assert_close({"output": output, "last cell": last}, wanted, ONNX)


GRU_ACTIVATIONS = [("sigmoid", "tanh"), ("hard_sigmoid", "relu"), ("tanh", "sigmoid")]


@every_size
@every_direction
@pytest.mark.parametrize("reset_after", [False, True], ids=["", "reset_after"])
@pytest.mark.parametrize("activations", GRU_ACTIVATIONS, ids="-".join)
def test_gru(
    sizes: tuple[int, int, int, int], direction: str, activations: tuple[str, str], *, reset_after: bool
) -> None:
    arrays = draw("GRU", sizes, direction)
    if reset_after:  # ONNX's bias inside the reset
        arrays["secondary_bias"] = some(np.random.default_rng(1), arrays["init_state"].shape[1])
    gate, candidate = activations
    descriptor = GRUDescriptor(
        reset_after=reset_after,
        update_gate_activation=gate,
        reset_gate_activation=gate,
        output_gate_activation=candidate,
        **options(direction),
    )
    got = vkrnn.gru(**mpsgraph_layout(arrays), descriptor=descriptor)
    names = [NAMES[name] for name in activations]
    wanted = run_onnx("GRU", arrays, direction, names, linear_before_reset=int(reset_after))
    assert_close(got._asdict(), wanted, ONNX)
