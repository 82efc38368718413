"""vkrnn.onnx against onnxruntime, and against onnx's own evaluator for layout 1 and 16-bit types."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest

import vkrnn
from comparison import assert_close, scaled_error
from onnx_nodes import DIRECTIONS, GATES, INPUTS, OUTPUTS, Drawn, as_model, by_onnxruntime, by_vkrnn
from oracles import require
from resident import dtype_of
from targets import Target, devices
from tolerances import DTYPES, ONNX

onnx = require("onnx")
onnxruntime = require("onnxruntime")

from onnx import helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from vkrnn.onnx import OPERATORS, Backend, from_onnx, run_node  # noqa: E402

SIZES = [(5, 3, 7, 4), (1, 1, 1, 1), (9, 2, 5, 17)]
# f, g, h of each operator. HardSigmoid has the same constants in ONNX and vkrnn.
FUNCTIONS = {
    "RNN": [("Relu",), ("Tanh",), ("Sigmoid",), ("HardSigmoid",)],
    "GRU": [("Sigmoid", "Tanh"), ("HardSigmoid", "Relu"), ("Tanh", "Sigmoid")],
    "LSTM": [("Sigmoid", "Tanh", "Tanh"), ("HardSigmoid", "Tanh", "Relu"), ("Sigmoid", "Relu", "Sigmoid")],
}

every_size = pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "x".join(map(str, sizes)))
every_direction = pytest.mark.parametrize("direction", DIRECTIONS)


@every_size
@every_direction
@pytest.mark.parametrize(
    ("op", "functions"),
    [(op, functions) for op, several in FUNCTIONS.items() for functions in several],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_functions(sizes: tuple[int, int, int, int], direction: str, op: str, functions: tuple[str, ...]) -> None:
    """Each operator in each direction with several activations and all inputs except P."""
    directions = 1 + (direction == "bidirectional")
    drawn = Drawn(op, sizes, direction, {"activations": list(functions) * directions}, frozenset({"P"}))
    assert_close(by_vkrnn(drawn.node, drawn.arrays), by_onnxruntime(drawn.node, drawn.arrays), ONNX)


@every_direction
@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("seed", range(24))
def test_random_nodes(op: str, direction: str, seed: int) -> None:
    """Random sizes and random optional inputs: peepholes of all gates, lengths, biases, states."""
    rng = np.random.default_rng([seed, GATES[op], DIRECTIONS.index(direction)])
    T, N, I, H = (int(size) for size in rng.integers(1, 9, 4))
    absent = frozenset(name for name in INPUTS[3:] if rng.random() < 0.4)
    attributes = {"linear_before_reset": int(rng.integers(2))} if op == "GRU" else {}
    drawn = Drawn(op, (T, N, I, H), direction, attributes, absent, seed)
    assert_close(by_vkrnn(drawn.node, drawn.arrays), by_onnxruntime(drawn.node, drawn.arrays), ONNX)


@every_direction
@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("peephole", [False, True], ids=["", "peephole"])
def test_length_zero(op: str, direction: str, *, peephole: bool) -> None:
    """Y is zeros, and Y_h and Y_c are the initial states, where onnxruntime has zeros. Other rows are unaffected."""
    drawn = Drawn(op, (4, 5, 3, 2), direction, absent=frozenset() if peephole else frozenset({"P"}))
    arrays = drawn.arrays | {"sequence_lens": np.array([3, 0, 4, 0, 1], np.int32)}
    got, wanted = by_vkrnn(drawn.node, arrays), by_onnxruntime(drawn.node, arrays)
    for result, initial in (("Y_h", "initial_h"), ("Y_c", "initial_c")):
        if result in wanted:
            wanted[result][:, [1, 3]] = arrays[initial][:, [1, 3]]
    assert not got["Y"][:, :, [1, 3]].any()
    assert_close(got, wanted, ONNX)


@every_direction
@pytest.mark.parametrize("op", GATES)
def test_layout(op: str, direction: str) -> None:
    """Layout 1 puts the batch first. onnx's evaluator supports it, but not sequence_lens."""
    drawn = Drawn(op, (5, 3, 7, 4), direction, {"layout": 1}, frozenset({"sequence_lens"}))
    evaluator = ReferenceEvaluator(as_model([drawn.node], drawn.arrays, OUTPUTS[op]))
    wanted = dict(zip(OUTPUTS[op], evaluator.run(None, drawn.arrays), strict=True))
    assert wanted["Y"].shape == (3, 5, 1 + (direction == "bidirectional"), 4)
    assert_close(by_vkrnn(drawn.node, drawn.arrays), wanted, ONNX)


@every_direction
@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(op: str, direction: str, dtype: str) -> None:
    """Results have the dtype of X. The state is rounded to it after each step, and so is the sum of the biases."""
    drawn = Drawn(op, (5, 3, 7, 4), direction, {}, frozenset({"sequence_lens", "P", "B"}))
    arrays = {name: array.astype(dtype_of(dtype)) for name, array in drawn.arrays.items()}
    wide = {name: array.astype(np.float64) for name, array in arrays.items()}
    wanted = dict(
        zip(OUTPUTS[op], ReferenceEvaluator(as_model([drawn.node], wide, OUTPUTS[op])).run(None, wide), strict=True)
    )
    got = by_vkrnn(drawn.node, arrays)
    assert {array.dtype for array in got.values()} == {dtype_of(dtype)}
    assert_close(got, wanted, DTYPES[dtype])


@pytest.mark.parametrize("target", devices(), ids=lambda target: target.id)
@pytest.mark.parametrize("op", GATES)
def test_devices(target: Target, op: str) -> None:
    """The node runs on the device that was named."""
    drawn = Drawn(op, (5, 3, 7, 4), "bidirectional")
    device = target.opened()
    before = device.statistics()["calls"]
    assert_close(by_vkrnn(drawn.node, drawn.arrays, device=device), by_onnxruntime(drawn.node, drawn.arrays), ONNX)
    assert device.statistics()["calls"] == before + 1


def test_inputs() -> None:
    """Inputs are given for all names of the node, or without its absent ones."""
    drawn = Drawn("GRU", (5, 3, 7, 4), absent=frozenset({"B", "sequence_lens"}))
    arrays = drawn.arrays
    wanted = run_node(drawn.node, arrays)
    names = list(drawn.node.input)
    assert names == ["X", "W", "R", "", "", "initial_h"]
    for inputs in ([arrays.get(name) for name in names], list(arrays.values())):
        for got, other in zip(run_node(drawn.node, inputs), wanted, strict=True):
            np.testing.assert_array_equal(got, other)
    one = helper.make_node("GRU", names, ["Y"])
    assert len(run_node(one, arrays)) == 1


@every_direction
@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("layout", [0, 1])
def test_empty_batch(op: str, direction: str, layout: int) -> None:
    """With N = 0, results are empty with ONNX's shapes. onnxruntime crashes for two of the three operators."""
    try:
        vkrnn.single_gate_rnn(np.ones((5, 0, 4), np.float32), np.ones((4, 4), np.float32))
    except ValueError:
        pytest.skip("N = 0 is not supported")
    drawn = Drawn(op, (5, 0, 7, 4), direction, {"layout": layout})
    D = 1 + (direction == "bidirectional")
    Y, state = ((0, 5, D, 4), (0, D, 4)) if layout else ((5, D, 0, 4), (D, 0, 4))
    shapes = {"Y": Y, "Y_h": state, "Y_c": state}
    assert {name: array.shape for name, array in by_vkrnn(drawn.node, drawn.arrays).items()} == {
        name: shapes[name] for name in OUTPUTS[op]
    }


# Weights only


@every_direction
@pytest.mark.parametrize("op", GATES)
def test_from_onnx(op: str, direction: str) -> None:
    """The layer gives the node's outputs in the documented order."""
    T, N, _, H = sizes = (5, 3, 7, 4)
    drawn = Drawn(op, sizes, direction, {}, frozenset({"sequence_lens"}))
    arrays = drawn.arrays
    constants = [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items() if name != "X"]
    layer = from_onnx(drawn.node, constants)
    assert layer.function is {"RNN": vkrnn.single_gate_rnn, "GRU": vkrnn.gru, "LSTM": vkrnn.lstm}[op]
    output = layer.function(arrays["X"], **layer.arguments, descriptor=layer.descriptor).output
    if direction == "reverse":
        output = output[::-1]
    wanted = by_onnxruntime(drawn.node, arrays)["Y"]
    assert scaled_error(output.reshape(T, N, -1, H).swapaxes(1, 2), wanted) <= ONNX
    by_name = from_onnx(drawn.node, {name: arrays[name] for name in ("W", "R")})
    assert set(by_name.arguments) == {"recurrent_weight", "input_weight"}
    swapped = from_onnx(Drawn(op, sizes, direction, {"layout": 1}).node, {name: arrays[name] for name in ("W", "R")})
    assert (by_name.batch_first, swapped.batch_first) == (False, True)
    again = swapped(arrays["X"].swapaxes(0, 1)).output.swapaxes(0, 1)
    assert np.array_equal(again, by_name(arrays["X"]).output)


def test_from_onnx_refuses() -> None:
    """Directions that differ, a W that is not constant, and other nodes are refused."""
    with pytest.raises(TypeError, match=r"^\[from_onnx\] node: expected an onnx.NodeProto, got int$"):
        from_onnx(3, {})
    drawn = Drawn("LSTM", (5, 3, 7, 4))
    functions = ["Sigmoid", "Tanh", "Sigmoid", "Relu"]
    differing = Drawn("GRU", (5, 3, 7, 4), "bidirectional", {"activations": functions})
    with pytest.raises(NotImplementedError) as caught:
        from_onnx(differing.node, differing.arrays)
    assert str(caught.value) == (
        "[GRU] activations: expected the same functions in both directions for one call, got "
        f"{functions}; vkrnn.onnx.run_node takes them"
    )
    with pytest.raises(ValueError) as caught:
        from_onnx(drawn.node, {"R": drawn.arrays["R"]})
    assert str(caught.value) == "[LSTM] W: expected an array, got none"
    with pytest.raises(ValueError) as caught:
        from_onnx(helper.make_node("Relu", ["X"], ["Y"]), {})
    assert str(caught.value) == "[from_onnx] node: expected one of RNN, GRU, LSTM, DynamicQuantizeLSTM, got Relu"


# Whole models


def test_outputs_without_a_name() -> None:
    """An unnamed output of a node is not an unnamed input of a later node."""
    first, second = Drawn("LSTM", (5, 3, 7, 4), absent=frozenset({"P"})), Drawn("GRU", (5, 3, 7, 4))
    arrays = first.arrays | {f"second {name}": second.arrays[name] for name in ("W", "R", "initial_h")}
    nodes = [
        helper.make_node("LSTM", list(first.node.input), ["", "Y_h"], hidden_size=4),
        helper.make_node("GRU", ["X", "second W", "second R", "", "", "Y_h"], ["", "end"], hidden_size=4),
    ]
    model = as_model(nodes, arrays, ["end"])
    [got] = ReferenceEvaluator(model, new_ops=OPERATORS).run(None, arrays)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert scaled_error(got, session.run(None, arrays)[0]) <= ONNX


def test_attributes_of_functions() -> None:
    """A node in a model's function may refer to an attribute of the function's caller."""
    drawn = Drawn("GRU", (5, 3, 7, 4), absent=frozenset({"B", "sequence_lens", "initial_h"}))
    inner = helper.make_node("GRU", ["X", "W", "R"], ["Y"], hidden_size=4)
    attribute = onnx.AttributeProto(name="direction", type=onnx.AttributeProto.STRING, ref_attr_name="way")
    inner.attribute.append(attribute)
    opset = helper.make_opsetid("", 14)
    function = helper.make_function("own", "recur", ["X", "W", "R"], ["Y"], [inner], [opset], ["way"])
    outer = helper.make_node("recur", ["X", "W", "R"], ["Y"], domain="own", way="reverse")
    model = as_model([outer], drawn.arrays, ["Y"])
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("Y", 1, ("T", "D", "N", "H")))
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.functions.append(function)
    device = vkrnn.Device("cpu (")
    [got] = Backend.run_model(model, drawn.arrays, device, runtime="evaluator")
    assert device.statistics()["calls"] == 1
    drawn.direction = "reverse"
    assert scaled_error(got, by_onnxruntime(drawn.node, drawn.arrays)["Y"]) <= ONNX


@pytest.mark.parametrize("kind", ["RNN", "GRU", "LSTM"])
def test_exported_model(torch: Any, tmp_path: Any, kind: str) -> None:
    """An exported PyTorch model with two bidirectional layers and a readout gives PyTorch's results."""
    torch.manual_seed(1)

    class Network(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.recurrent = getattr(torch.nn, kind)(7, 6, num_layers=2, bidirectional=True, batch_first=True)
            self.readout = torch.nn.Linear(12, 2)

        def forward(self, source: Any) -> Any:
            output, _ = self.recurrent(source)
            return self.readout(torch.relu(output))

    network, source = Network().eval(), torch.randn(3, 5, 7)
    path = tmp_path / "model.onnx"
    with warnings.catch_warnings():  # the exporter is deprecated
        warnings.simplefilter("ignore")
        torch.onnx.export(network, (source,), path, dynamo=False, opset_version=17, input_names=["source"])
    model = onnx.load(path)
    assert sum(node.op_type == kind for node in model.graph.node) == 2
    device = vkrnn.Device("cpu (")
    with device:
        [got] = ReferenceEvaluator(model, new_ops=OPERATORS).run(None, {"source": source.numpy()})
    assert device.statistics()["calls"] == 2
    assert scaled_error(got, network(source).detach().numpy()) <= ONNX


def test_gate_orders_differ() -> None:
    """With random weights, every other order of gates gives very different results."""
    drawn = Drawn("LSTM", (5, 3, 7, 4), absent=frozenset({"P"}))
    wanted = by_onnxruntime(drawn.node, drawn.arrays)["Y"]
    errors = []
    for order in itertools.permutations(range(4)):
        arrays = drawn.arrays
        for name in ("W", "R"):
            arrays[name] = arrays[name].reshape(1, 4, 4, -1)[:, order].reshape(arrays[name].shape)
        arrays["B"] = arrays["B"].reshape(1, 2, 4, 4)[:, :, order].reshape(1, 32)
        errors.append(scaled_error(by_vkrnn(drawn.node, arrays)["Y"], wanted))
    assert errors[0] <= ONNX
    assert min(errors[1:]) > 100 * ONNX
