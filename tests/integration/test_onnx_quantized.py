"""Recurrent nodes with weights in eight bits: DynamicQuantizeLSTM, and DequantizeLinear before an RNN, GRU or LSTM."""

from __future__ import annotations

import itertools
import logging
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkrnn
from comparison import assert_close
from onnx_nodes import DIRECTIONS, GATES, INPUTS, OUTPUTS, Array, Arrays, Drawn, as_model, by_onnxruntime, by_vkrnn
from oracles import require
from tolerances import ONNX

onnx = require("onnx")
onnxruntime = require("onnxruntime")

from onnx import helper, numpy_helper  # noqa: E402

from vkrnn.onnx import Backend, from_onnx  # noqa: E402

prepare = partial(Backend.prepare, runtime="evaluator")

QUANTIZATION = ("W_scale", "W_zero_point", "R_scale", "R_zero_point")
SIZES = (5, 3, 7, 4)


def quantized(arrays: Arrays, dtype: str, *, by_column: bool) -> Arrays:
    """Return a DynamicQuantizeLSTM's inputs for those of an LSTM."""
    found, info = dict(arrays), np.iinfo(dtype)
    for key in ("W", "R"):
        columns = arrays[key].swapaxes(1, 2)
        axes = 1 if by_column else (1, 2)
        scale = (np.ptp(columns, axes) / 250).astype(np.float32)
        zero = np.round(info.min + 3 - columns.min(axes) / scale).astype(dtype)
        shape = (len(columns), 1, -1)
        levels = np.round(columns / scale.reshape(shape)) + zero.reshape(shape)
        found |= {key: np.clip(levels, info.min, info.max).astype(dtype)}
        found |= {f"{key}_scale": scale, f"{key}_zero_point": zero}
    return found


def plain(arrays: Arrays) -> Arrays:
    """Return the inputs of an LSTM with the dequantized weights."""
    found = {name: array for name, array in arrays.items() if name not in QUANTIZATION}
    for key in ("W", "R"):
        levels = arrays[key].astype(np.float64)
        shape = (len(levels), 1, -1)
        zero, scale = (arrays[f"{key}_{part}"].astype(np.float64).reshape(shape) for part in ("zero_point", "scale"))
        found[key] = ((levels - zero) * scale).astype(np.float32).swapaxes(1, 2)
    return found


def node_of(drawn: Drawn, arrays: Arrays) -> Any:
    """Return the DynamicQuantizeLSTM for an LSTM."""
    names = [name if name in arrays else "" for name in (*INPUTS, *QUANTIZATION)]
    node = helper.make_node("DynamicQuantizeLSTM", names, OUTPUTS["LSTM"], domain="com.microsoft")
    node.attribute.extend(drawn.node.attribute)
    return node


def model_of(node: Any, arrays: Arrays, opset: int = 17) -> Any:
    """Return a model of the node that takes X, the states and the lengths. Other arrays are initializers."""
    taken = {name: array for name, array in arrays.items() if name in ("X", "sequence_lens", "initial_h", "initial_c")}
    model = as_model([node], taken, list(node.output))
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in arrays.items() if name not in taken
    )
    model.opset_import[0].version = opset
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    model.ir_version = 10
    return model


def run_in_onnxruntime(model: Any, arrays: Arrays) -> list[Array]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found: list[Array] = session.run(None, {each.name: arrays[each.name] for each in session.get_inputs()})
    return found


def rounded(values: Array) -> Array:
    """Return activations as onnxruntime quantizes them: to 256 levels between their extremes and zero."""
    least, most = min(values.min(), 0.0), max(values.max(), 0.0)
    scale = (most - least) / 255 or 1.0
    zero = np.round(-least / scale)
    rounded: Array = (np.clip(np.round(values / scale) + zero, 0, 255) - zero) * scale
    return rounded


def with_rounded_activations(arrays: Arrays) -> list[Array]:
    """Return the outputs of a forward LSTM in float64 whose products take quantized activations."""
    X, W, R = rounded(arrays["X"].astype(np.float64)), *(arrays[key][0].astype(np.float64) for key in "WR")
    bias = arrays["B"].reshape(2, -1).sum(0)
    h = c = np.zeros((X.shape[1], R.shape[1]))
    outputs = []
    for x in X:
        i, o, f, z = np.split(x @ W.T + rounded(h) @ R.T + bias, 4, axis=1)
        i, o, f = (1 / (1 + np.exp(-gate)) for gate in (i, o, f))
        c = f * c + i * np.tanh(z)
        h = o * np.tanh(c)
        outputs.append(h)
    return [np.stack(outputs)[:, None], h[None], c[None]]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("by_column", [False, True], ids=["by direction", "by column"])
@pytest.mark.parametrize("absent", [frozenset[str](), frozenset({"B", "sequence_lens", "initial_h", "initial_c", "P"})])
def test_dequantized_weights(direction: str, dtype: str, absent: frozenset[str], *, by_column: bool) -> None:
    """The node is an LSTM with these weights, and all inputs of one."""
    drawn = Drawn("LSTM", SIZES, direction, {}, absent)
    arrays = quantized(drawn.arrays, dtype, by_column=by_column)
    wanted = by_onnxruntime(drawn.node, plain(arrays))
    assert_close(by_vkrnn(node_of(drawn, arrays), arrays), wanted, ONNX)


@pytest.mark.parametrize(
    "attributes",
    [
        {"clip": 0.5},
        {"input_forget": 1},
        {"activations": ["HardSigmoid", "Tanh", "Relu"], "activation_alpha": [0.3], "activation_beta": [0.4]},
    ],
    ids=lambda attributes: next(iter(attributes)),
)
def test_attributes(attributes: dict[str, Any]) -> None:
    """Attributes are those of an LSTM. There is no layout."""
    drawn = Drawn("LSTM", SIZES, "forward", attributes, frozenset({"P"}))
    arrays = quantized(drawn.arrays, "int8", by_column=True)
    assert_close(by_vkrnn(node_of(drawn, arrays), arrays), by_vkrnn(drawn.node, plain(arrays)), ONNX)
    node = node_of(drawn, arrays)
    node.attribute.append(helper.make_attribute("layout", 1))
    with pytest.raises(NotImplementedError, match=r"^\[DynamicQuantizeLSTM\] layout: expected an attribute of Dynam"):
        by_vkrnn(node, arrays)


def test_without_zero_points() -> None:
    """They are zero if not given."""
    drawn = Drawn("LSTM", SIZES, absent=frozenset({"P"}))
    arrays = quantized(drawn.arrays, "int8", by_column=False)
    zeros = {name: np.zeros_like(array) for name, array in arrays.items() if "zero" in name}
    fewer = {name: array for name, array in arrays.items() if name not in zeros}
    wanted = by_onnxruntime(drawn.node, plain(arrays | zeros))
    assert_close(by_vkrnn(node_of(drawn, fewer), fewer), wanted, ONNX)


def test_from_onnx() -> None:
    """The weights of the layer are dequantized."""
    drawn = Drawn("LSTM", SIZES, absent=frozenset({"sequence_lens"}))
    arrays = quantized(drawn.arrays, "uint8", by_column=True)
    found, wanted = from_onnx(node_of(drawn, arrays), arrays), from_onnx(drawn.node, plain(arrays))
    assert (found.function, found.descriptor) == (vkrnn.lstm, wanted.descriptor)
    assert found.arguments.keys() == wanted.arguments.keys()
    for name, array in found.arguments.items():
        np.testing.assert_allclose(array, wanted.arguments[name], rtol=1e-6)


WRONG: list[tuple[str, Any, type[Exception], str]] = [
    ("W", np.zeros((1, 7, 16), np.int16), TypeError, "W: expected dtype int8 or uint8, got int16"),
    ("W", np.zeros((1, 16, 7), np.int8), ValueError, "W: expected shape [D, I, 4H] = [1, 16, 16], got [1, 16, 7]"),
    ("R", np.zeros((2, 4, 16), np.int8), ValueError, "R: expected shape [D, H, 4H] = [1, 4, 16], got [2, 4, 16]"),
    ("W_scale", None, ValueError, "W_scale: expected an array, got none"),
    (
        "R_scale",
        np.ones(3, np.float32),
        ValueError,
        "R_scale: expected shape [D] = [1] or [D, 4H] = [1, 16], got [3]",
    ),
    (
        "R_zero_point",
        np.ones((1, 4), np.int8),
        ValueError,
        "R_zero_point: expected shape [D] = [1] or [D, 4H] = [1, 16], got [1, 4]",
    ),
    (
        "W_zero_point",
        np.zeros(1, np.uint8),
        TypeError,
        "W_zero_point: expected dtype int8 like W, got uint8",
    ),
]


@pytest.mark.parametrize(("name", "array", "error", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_errors(name: str, array: Array | None, error: type[Exception], message: str) -> None:
    """Messages name the node and the input."""
    drawn = Drawn("LSTM", SIZES)
    arrays = quantized(drawn.arrays, "int8", by_column=False)
    if array is None:
        del arrays[name]
    else:
        arrays[name] = array
    with pytest.raises(error) as caught:
        by_vkrnn(node_of(drawn, arrays), arrays)
    assert str(caught.value) == f"[DynamicQuantizeLSTM] {message}"


@pytest.mark.parametrize("by_column", [False, True], ids=["by direction", "by column"])
def test_models_of_onnxruntime(tmp_path: Path, runs: list[Any], *, by_column: bool) -> None:
    """A model of `quantize_dynamic` differs from onnxruntime by what the quantization of its activations changes."""
    from onnxruntime.quantization import quantize_dynamic  # noqa: PLC0415 - slow to import

    drawn = Drawn("LSTM", (12, 4, 9, 16), absent=frozenset({"sequence_lens", "initial_h", "initial_c", "P"}))
    arrays = drawn.arrays
    onnx.save(model_of(drawn.node, arrays), tmp_path / "plain.onnx")
    logging.disable(logging.WARNING)
    quantize_dynamic(tmp_path / "plain.onnx", tmp_path / "quantized.onnx", per_channel=by_column)
    logging.disable(logging.NOTSET)
    model = onnx.load(tmp_path / "quantized.onnx")
    [node] = [node for node in model.graph.node if node.op_type == "DynamicQuantizeLSTM"]
    initializers = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    given = {
        key: initializers[name]
        for key, name in zip((*INPUTS, *QUANTIZATION), node.input, strict=True)
        if name in initializers
    }
    exact = plain({**given, "X": arrays["X"]})

    prepared = prepare(model)
    found = [prepared.run({"X": arrays["X"]}) for _ in range(2)]
    assert len(runs) == 1
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)
    wanted = by_onnxruntime(drawn.node, exact)
    assert_close(dict(zip(wanted, found[0], strict=True)), wanted, ONNX)
    by_others = run_in_onnxruntime(model, arrays)
    for got, theirs, simulated in zip(found[0], by_others, with_rounded_activations(exact), strict=True):
        explained = np.abs(simulated - got).max()
        assert 0 < np.abs(theirs - got).max() <= 2 * explained


# DequantizeLinear


def dequantizing(op: str, opset: int, axis: int | None, direction: str = "forward") -> tuple[Any, Arrays]:
    """Return a model whose W and R come from DequantizeLinear, and its inputs."""
    drawn = Drawn(op, SIZES, direction, {}, frozenset({"P"}))
    arrays, nodes = drawn.arrays, []
    for key in ("W", "R"):
        axes = tuple(other for other in range(3) if axis is None or other != axis % 3)
        scale = (np.abs(arrays[key]).max(axes) / 100).astype(np.float32)
        levels = np.round(arrays[key] / np.expand_dims(scale, axes)).astype(np.int8)
        zero = np.full(scale.shape, -5, np.int8)
        inputs = {f"{key} levels": levels, f"{key} scale": scale, f"{key} zero": zero}
        options = {} if axis is None else {"axis": axis}
        nodes.append(helper.make_node("DequantizeLinear", list(inputs), [key], **options))
        arrays |= inputs
        del arrays[key]
    model = model_of(drawn.node, arrays, opset)
    del model.graph.node[:]
    model.graph.node.extend([*nodes, drawn.node])
    return model, arrays


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize(
    ("opset", "axis"), [(10, None), *itertools.product((13, 17, 19, 21), (None, 1, -1, 0))], ids=str
)
def test_dequantized_constants(op: str, opset: int, axis: int | None, runs: list[Any]) -> None:
    """They are weights like other constants, which the device keeps, in opsets that ONNX's evaluator lacks, too."""
    model, arrays = dequantizing(op, opset, axis)
    given = {each.name: arrays[each.name] for each in model.graph.input}
    before = model.SerializeToString()
    prepared = prepare(model)
    assert model.SerializeToString() == before
    wanted = run_in_onnxruntime(model, arrays)
    for count in range(2):
        found = prepared.run(given)
        assert len(runs) == count
        assert_close(dict(zip(OUTPUTS[op], found, strict=True)), dict(zip(OUTPUTS[op], wanted, strict=True)), ONNX)


def test_blocks() -> None:
    """From opset 21 on, scales may belong to blocks of an axis."""
    drawn = Drawn("GRU", (5, 3, 8, 4), absent=frozenset({"B", "sequence_lens", "initial_h"}))
    arrays = drawn.arrays
    levels = np.random.default_rng(0).integers(-100, 100, arrays["W"].shape).astype(np.int8)
    scale = np.random.default_rng(1).uniform(0.001, 0.01, (1, 12, 3)).astype(np.float32)
    arrays |= {"levels": levels, "scale": scale}
    arrays["W"] = levels * np.repeat(scale, 3, 2)[..., :8]
    wanted = by_onnxruntime(drawn.node, {name: arrays[name] for name in ("X", "W", "R")})
    del arrays["W"]
    model = model_of(drawn.node, arrays, 21)
    node = helper.make_node("DequantizeLinear", ["levels", "scale"], ["W"], axis=2, block_size=3)
    model.graph.node.insert(0, node)
    found = prepare(model).run({"X": arrays["X"]})
    assert_close(dict(zip(OUTPUTS["GRU"], found, strict=True)), wanted, ONNX)


def test_levels_that_may_change(runs: list[Any]) -> None:
    """Weights whose levels are inputs of the model are dequantized in each run."""
    model, arrays = dequantizing("LSTM", 19, None)
    [levels] = [tensor for tensor in model.graph.initializer if tensor.name == "R levels"]
    model.graph.initializer.remove(levels)
    model.graph.input.append(helper.make_tensor_value_info("R levels", levels.data_type, levels.dims))
    given = {each.name: arrays[each.name] for each in model.graph.input}
    prepared = prepare(model)
    for _ in range(2):
        found, wanted = prepared.run(given), run_in_onnxruntime(model, given)
        assert_close(
            dict(zip(OUTPUTS["LSTM"], found, strict=True)), dict(zip(OUTPUTS["LSTM"], wanted, strict=True)), ONNX
        )
        given["R levels"] = given["R levels"][:, ::-1].copy()
    assert not runs
