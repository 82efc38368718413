"""Models that run in onnxruntime, as a whole or all but their recurrent nodes, give onnxruntime's results."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles import require
from tolerances import ONNX

onnx = require("onnx")
onnxruntime = require("onnxruntime")

from onnx import helper, numpy_helper  # noqa: E402

from vkrnn.onnx import Backend  # noqa: E402

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
I, H = 6, 8
FLOAT, INT32, BOOL = (onnx.TensorProto.FLOAT, onnx.TensorProto.INT32, onnx.TensorProto.BOOL)


def draw(*shape: int) -> Any:
    return np.random.default_rng(shape).uniform(-0.5, 0.5, shape).astype(np.float32)


def weights_of(op: str, D: int = 1, features: int = I) -> dict[str, Any]:
    G = GATES[op]
    return {"W": draw(D, G * H, features), "R": draw(D, G * H, H), "B": draw(D, 2 * G * H)}


def value(name: str, shape: Sequence[Any] | None = None, dtype: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def model_of(nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], tensors: dict[str, Any]) -> Any:
    initializers = [numpy_helper.from_array(array, name) for name, array in tensors.items()]
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def by_onnxruntime(model: Any, given: dict[str, Any]) -> list[Any]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found: list[Any] = session.run(None, given)
    return found


def assert_near(got: Sequence[Any], wanted: Sequence[Any]) -> None:
    assert len(got) == len(wanted)
    for one, other in zip(got, wanted, strict=True):
        assert one.shape == other.shape
        assert np.abs(one - other).max() <= ONNX


def chain(T: Any = "T", N: Any = "N") -> Any:
    """Return a model: a convolution, an LSTM, a bidirectional GRU with lengths, and a product with a skip connection.

    Some outputs are a constant, an input and a recurrent node's state.
    """
    tensors = {
        **{f"{name}1": array for name, array in weights_of("LSTM").items()},
        **{f"{name}2": array for name, array in weights_of("GRU", 2, H).items()},
        "kernel": draw(I, I, 3),
        "readout": draw(2 * H, I),
        "one": np.array([1]),
        "constant": draw(2),
        "shape": np.array([0, 0, 2 * H]),
    }
    nodes = [
        helper.make_node("Transpose", ["X"], ["X_nit"], perm=[1, 2, 0]),
        helper.make_node("Conv", ["X_nit", "kernel"], ["Z_nit"], pads=[1, 1]),
        helper.make_node("Transpose", ["Z_nit"], ["Z"], perm=[2, 0, 1]),
        helper.make_node("LSTM", ["Z", "W1", "R1", "B1"], ["Y1", "", "cell"], hidden_size=H),
        helper.make_node("Squeeze", ["Y1", "one"], ["Y1_tnh"]),
        helper.make_node(
            "GRU",
            ["Y1_tnh", "W2", "R2", "B2", "lengths"],
            ["Y2"],
            hidden_size=H,
            direction="bidirectional",
            linear_before_reset=1,
        ),
        helper.make_node("Transpose", ["Y2"], ["Y2_tndh"], perm=[0, 2, 1, 3]),
        helper.make_node("Reshape", ["Y2_tndh", "shape"], ["Y2_flat"]),
        helper.make_node("MatMul", ["Y2_flat", "readout"], ["product"]),
        helper.make_node("Add", ["product", "Z"], ["sum"]),
    ]
    inputs = [value("X", (T, N, I)), value("lengths", (N,), INT32)]
    outputs = [
        value("sum", (T, N, I)),
        value("cell", (1, N, H)),
        value("constant", (2,)),
        value("lengths", (N,), INT32),
    ]
    return model_of(nodes, inputs, outputs, tensors)


def given_for(T: int, N: int) -> dict[str, Any]:
    return {"X": draw(T, N, I), "lengths": np.linspace(1, T, N).astype(np.int32)}


@pytest.mark.parametrize("names", ["mapping", "sequence"])
def test_partition(names: str, runs: list[Any]) -> None:
    """Both recurrent nodes run on the device with kept weights, from the first run on."""
    model = chain()
    prepared = Backend.prepare(model, runtime="partition")
    assert prepared.runtime == "partition"
    for T, N in ((5, 3), (1, 1), (7, 2)):
        given = given_for(T, N)
        runs.clear()
        assert_near(prepared.run(given if names == "mapping" else list(given.values())), by_onnxruntime(model, given))
        assert len(runs) == 2


def test_known_sizes_decide(caplog: pytest.LogCaptureFixture) -> None:
    """`prepare` says where a model runs. Single steps and little work run in onnxruntime as a whole."""
    for T, N, runtime in ((1, 3, "onnxruntime"), (5, 3, "onnxruntime"), (5000, 3, "partition")):
        model = chain(T, N)
        with caplog.at_level(logging.INFO, "vkrnn"):
            caplog.clear()
            prepared = Backend.prepare(model)
        assert prepared.runtime == runtime
        assert "a partition pays" in prepared.reason
        assert f"model 'graph' runs with runtime {runtime!r}: {prepared.reason}" in caplog.messages
        given = given_for(T, N)
        assert_near(prepared.run(given), by_onnxruntime(model, given))


def test_sizes_of_a_run_decide(runs: list[Any]) -> None:
    """Where the model leaves sizes open. All runs with equal shapes have the same bits."""
    model = chain()
    prepared = Backend.prepare(model)
    assert prepared.runtime == "auto"
    for T, N, calls in ((5, 3, [2, 0, 0]), (5000, 3, [2, 2, 2]), (5, 3, [0, 0, 0])):
        given, wanted = given_for(T, N), by_onnxruntime(model, given_for(T, N))
        results = []
        for expected in calls:
            runs.clear()
            results.append(prepared.run(given))
            assert len(runs) == expected
        assert_near(results[0], wanted)
        for other in results[1:]:
            for one, same in zip(results[0], other, strict=True):
                np.testing.assert_array_equal(one, same)
        if calls[-1] == 0:
            for one, whole in zip(results[0], wanted, strict=True):
                np.testing.assert_array_equal(one, whole)


def constant(name: str, array: Any) -> Any:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))


def shaped_weights(op: str) -> tuple[list[Any], dict[str, Any]]:
    """Return nodes that make W, R and B of constants as PyTorch's exporters do, and their initializers."""
    W, R, B = weights_of(op).values()
    first, second = np.split(B, 2, axis=1)
    quantized = np.round(R[0] * 100).astype(np.int8)
    tensors = {
        "W_taller": np.concatenate([W[0], W[0]]).T.copy(),
        "R_quantized": quantized,
        "R_scale": np.float32(0.01).reshape(()),
        "first": first[0],
        "second": second[0],
        "start": np.array([0]),
        "end": np.array([len(W[0])]),
    }
    nodes = [
        constant("axis", np.array([0])),
        helper.make_node("Transpose", ["W_taller"], ["W_tall"], perm=[1, 0]),
        helper.make_node("Slice", ["W_tall", "start", "end", "axis"], ["W_flat"]),
        helper.make_node("Unsqueeze", ["W_flat", "axis"], ["W"]),
        helper.make_node("DequantizeLinear", ["R_quantized", "R_scale"], ["R_flat"]),
        helper.make_node("Unsqueeze", ["R_flat", "axis"], ["R"]),
        helper.make_node("Concat", ["first", "second"], ["B_flat"], axis=0),
        helper.make_node("Unsqueeze", ["B_flat", "axis"], ["B"]),
    ]
    return nodes, tensors


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("runtime", ["evaluator", "partition"])
def test_weights_behind_shape_operators(op: str, runtime: Any, runs: list[Any]) -> None:
    """They are computed once, and kept."""
    nodes, tensors = shaped_weights(op)
    options = {"linear_before_reset": 1} if op == "GRU" else {}
    nodes.append(helper.make_node(op, ["X", "W", "R", "B"], ["Y", "Y_h"], hidden_size=H, **options))
    model = model_of(nodes, [value("X", ("T", "N", I))], [value("Y"), value("Y_h")], tensors)
    before = model.SerializeToString()
    prepared = Backend.prepare(model, runtime=runtime)
    assert model.SerializeToString() == before
    given = {"X": draw(5, 3, I)}
    for _ in range(3):
        runs.clear()
        assert_near(prepared.run(given), by_onnxruntime(model, given))
    assert len(runs) == 1


def branches(op: str = "LSTM") -> Any:
    """Return a model like silero-vad: an If of two branches with a recurrent node and shaped weights in each."""
    graphs = []
    for sign in ("Neg", "Identity"):
        nodes, tensors = shaped_weights(op)
        nodes += [
            helper.make_node(op, ["Z", "W", "R", "B"], ["Y"], hidden_size=H),
            helper.make_node(sign, ["Y"], ["result"]),
        ]
        initializers = [numpy_helper.from_array(array, name) for name, array in tensors.items()]
        graphs.append(helper.make_graph(nodes, sign, [], [value("result")], initializers))
    nodes = [
        helper.make_node("Relu", ["X"], ["Z"]),
        helper.make_node("If", ["which"], ["found"], then_branch=graphs[0], else_branch=graphs[1]),
    ]
    return model_of(nodes, [value("X", ("T", "N", I)), value("which", (), BOOL)], [value("found")], {})


def test_recurrent_nodes_in_branches(runs: list[Any]) -> None:
    """They run in onnxruntime with the rest, or in ONNX's evaluator with kept weights."""
    model = branches()
    prepared, evaluated = Backend.prepare(model), Backend.prepare(model, runtime="evaluator")
    assert (prepared.runtime, prepared.reason) == ("onnxruntime", "recurrent nodes are within If, Loop or Scan")
    for which in (True, False):
        given = {"X": draw(5, 3, I), "which": np.array(which)}
        wanted = by_onnxruntime(model, given)
        np.testing.assert_array_equal(prepared.run(given)[0], wanted[0])
        assert not runs
        for _ in range(2):
            assert_near(evaluated.run(given), wanted)
        assert len(runs) == 1
        runs.clear()
    with pytest.raises(NotImplementedError) as caught:
        Backend.prepare(model, runtime="partition")
    assert str(caught.value) == (
        "[Backend] runtime: expected another than 'partition': recurrent nodes are within If, Loop or Scan"
    )


def test_branches_beside_recurrent_nodes() -> None:
    """A branch reads values from outside: an input, a recurrent node's output and an earlier session's."""
    use = [helper.make_node("Add", ["Y", "bias"], ["t"]), helper.make_node("Mul", ["t", "Z"], ["t2"])]
    then = helper.make_graph([*use, helper.make_node("Add", ["t2", "extra"], ["then"])], "then", [], [value("then")])
    other = helper.make_graph([helper.make_node("Neg", ["Y"], ["else"])], "else", [], [value("else")])
    nodes = [
        helper.make_node("Tanh", ["X"], ["Z"]),
        helper.make_node("RNN", ["X", "W", "R", "B"], ["Y"], hidden_size=H),
        helper.make_node("If", ["which"], ["found"], then_branch=then, else_branch=other),
    ]
    inputs = [value("X", ("T", "N", H)), value("which", (), BOOL), value("extra", (1,))]
    model = model_of(nodes, inputs, [value("found")], {**weights_of("RNN", 1, H), "bias": draw(H)})
    prepared = Backend.prepare(model, runtime="partition")
    for which in (True, False):
        given = {"X": draw(1, 3, H), "which": np.array(which), "extra": draw(1)}
        assert_near(prepared.run(given), by_onnxruntime(model, given))


def test_weights_that_are_inputs() -> None:
    """They are read in each run, also those that an input overrides."""
    weights = weights_of("GRU")
    node = helper.make_node("GRU", ["X", "W", "R", "B"], ["Y"], hidden_size=H, linear_before_reset=1)
    inputs = [value("X", ("T", "N", I)), value("W", weights["W"].shape), value("R", weights["R"].shape)]
    model = model_of([node], inputs, [value("Y")], {name: weights[name] for name in "RB"})
    prepared = Backend.prepare(model, runtime="partition")
    for more in ({}, {"R": weights["R"] + np.float32(1)}):
        given = {"X": draw(5, 3, I), "W": weights["W"], **more}
        assert_near(prepared.run(given), by_onnxruntime(model, given))
    with pytest.raises(ValueError) as caught:
        prepared.run({"X": draw(5, 3, I)})
    assert str(caught.value) == "[Backend] inputs: expected X, W, R, got no W"


def test_nodes_that_onnxruntime_refuses(runs: list[Any]) -> None:
    """A model with layout 1 runs as a partition, whatever its sizes."""
    node = helper.make_node("LSTM", ["X", "W", "R", "B"], ["Y"], hidden_size=H, layout=1)
    nodes = [node, helper.make_node("Neg", ["Y"], ["Z"])]
    model = model_of(nodes, [value("X", (3, 5, I))], [value("Z", (3, 5, 1, H))], weights_of("LSTM"))
    prepared = Backend.prepare(model)
    assert prepared.runtime == "partition"
    assert prepared.reason.startswith("onnxruntime refuses it: ")
    given = {"X": draw(3, 5, I)}
    assert_near(prepared.run(given), Backend.prepare(model, runtime="evaluator").run(given))
    assert runs


def test_nodes_that_vkrnn_refuses() -> None:
    """A model with an activation that vkrnn lacks runs in onnxruntime as a whole."""
    node = helper.make_node("RNN", ["X", "W", "R", "B"], ["Y"], hidden_size=H, activations=["Softsign"])
    model = model_of([node], [value("X", ("T", "N", I))], [value("Y")], weights_of("RNN"))
    prepared, given = Backend.prepare(model), {"X": draw(5, 3, I)}
    assert prepared.runtime == "onnxruntime"
    assert prepared.reason.startswith("[RNN] activations: ")
    np.testing.assert_array_equal(prepared.run(given)[0], by_onnxruntime(model, given)[0])


def test_without_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX's evaluator runs the model."""
    model, given = chain(), given_for(5, 3)
    wanted = by_onnxruntime(model, given)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    prepared = Backend.prepare(model)
    assert (prepared.runtime, prepared.reason) == ("evaluator", "onnxruntime is not installed")
    assert_near(prepared.run(given), wanted)
    for runtime in ("partition", "onnxruntime"):
        with pytest.raises(ImportError) as caught:
            Backend.prepare(model, runtime=runtime)
        assert str(caught.value).startswith(f"[Backend] runtime '{runtime}' needs the package onnxruntime")


def test_wrong_runtime() -> None:
    """The error lists the right ones."""
    with pytest.raises(ValueError) as caught:
        Backend.prepare(chain(), runtime="both")  # type: ignore[arg-type]
    assert str(caught.value) == (
        "[Backend] runtime: expected one of auto, partition, onnxruntime, evaluator, got 'both'"
    )


@pytest.mark.parametrize("dynamo", [False, True])
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_exported_by_pytorch(torch: Any, kind: str, *, dynamo: bool, runs: list[Any]) -> None:
    """Both exporters' models keep the weights of both layers."""
    if dynamo:
        require("onnxscript")

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.below = torch.nn.Linear(I, I)
            self.layers = getattr(torch.nn, kind)(I, H, num_layers=2, bidirectional=True, batch_first=True)
            self.above = torch.nn.Linear(2 * H, 3)

        def forward(self, x: Any) -> Any:
            return self.above(self.layers(torch.relu(self.below(x)))[0])

    torch.manual_seed(1)
    file = io.BytesIO()
    network, source = Model().eval(), torch.from_numpy(draw(2, 9, I))
    with warnings.catch_warnings():  # of PyTorch about itself
        warnings.simplefilter("ignore")
        torch.onnx.export(network, (source,), file, dynamo=dynamo, verbose=False, input_names=["x"])
    model = onnx.load_from_string(file.getvalue())
    prepared = Backend.prepare(model, runtime="partition")
    given = {"x": source.numpy()}
    found = prepared.run(given)
    assert_near(found, by_onnxruntime(model, given))
    assert np.abs(found[0] - network(source).detach().numpy()).max() <= ONNX
    assert len(runs) == 2


@pytest.mark.xdist_group("bench")
def test_benchmark(tmp_path: Path) -> None:
    """Each way to run a model has a row. No time is asserted."""
    file = tmp_path / "chain.onnx"
    onnx.save(chain(), file)
    options = ["--set", "T=5", "N=2", "lengths=5", "--smoke", "--runtimes", "auto", "partition", "evaluator"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.models", str(file), *options],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines() if "chain" in line
    ]
    assert [row[1] for row in rows] == ["auto: auto", "partition", "evaluator"]
    assert all(float(row[2]) <= ONNX for row in rows)
