"""ONNX's node tests of RNN, GRU and LSTM, run by ONNX's runner on vkrnn's backend."""

from __future__ import annotations

import re
import unittest
import warnings
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import vkrnn
from oracles import require

onnx = require("onnx")

from onnx import helper  # noqa: E402
from onnx.backend import test as backend_test  # noqa: E402

from vkrnn.onnx import Backend, BackendRep, Runtime  # noqa: E402

NAMES = re.compile(r"test_(simple_)?(rnn|gru|lstm)_\w+_cpu")


RUNTIMES: tuple[Runtime, ...] = ("evaluator", "partition") if find_spec("onnxruntime") else ("evaluator",)


def _backend(runtime: Runtime) -> type[Backend]:
    """Return a backend whose models run so."""

    class Chosen(Backend):
        @classmethod
        def prepare(cls, model: Any, device: Any = "CPU", **kwargs: Any) -> BackendRep:
            return Backend.prepare(model, device, **(kwargs | {"runtime": runtime}))

    return Chosen


def _node_tests(runtime: Runtime) -> dict[str, Any]:
    with warnings.catch_warnings():  # from cases of other operators
        warnings.simplefilter("ignore")
        cases = backend_test.BackendTest(_backend(runtime), __name__).test_cases
    return {name: function for case in cases.values() for name, function in vars(case).items() if NAMES.fullmatch(name)}


NODE_TESTS = {runtime: _node_tests(runtime) for runtime in RUNTIMES}


class TestNodes(unittest.TestCase):
    """ONNX's runner adds the test methods."""


for _runtime, _tests in NODE_TESTS.items():
    for _name, _function in _tests.items():
        setattr(TestNodes, f"{_name}_{_runtime}", _function)


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("op", ["simple_rnn", "gru", "lstm"])
def test_the_cases_are_there(op: str, runtime: Runtime) -> None:
    """The cases include those of every release since 2023, with peepholes."""
    kinds = {"defaults", "with_initial_bias", "batchwise"} | ({"with_peepholes"} if op == "lstm" else set())
    assert {f"test_{op}_{kind}_cpu" for kind in kinds} <= set(NODE_TESTS[runtime])
    assert {"test_rnn_seq_length_cpu", "test_gru_seq_length_cpu"} <= set(NODE_TESTS[runtime])


def a_model() -> tuple[Any, dict[str, Any]]:
    """Return a model and its inputs."""
    shapes = {"X": (5, 3, 7), "W": (1, 4, 7), "R": (1, 4, 4)}
    arrays = {name: np.full(shape, 0.1, np.float32) for name, shape in shapes.items()}
    given = [helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()]
    nodes = [helper.make_node("RNN", list(shapes), ["Y"], hidden_size=4), helper.make_node("Neg", ["Y"], ["Z"])]
    graph = helper.make_graph(nodes, "graph", given, [helper.make_tensor_value_info("Z", 1, ("T", "D", "N", "H"))])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8), arrays


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_devices(runtime: Runtime) -> None:
    """A device is given as an object, index or part of a name; "CPU" is the native CPU device."""
    model, arrays = a_model()
    device = vkrnn.Device("cpu (")
    prepared = Backend.prepare(model, device, runtime=runtime)
    assert prepared.device is device
    [by_position] = prepared.run(list(arrays.values()))
    assert device.statistics()["calls"] == 1
    [by_name] = prepared.run(arrays)
    np.testing.assert_array_equal(by_position, by_name)
    assert (by_name < 0).all()
    assert Backend.prepare(model).device.backend == "native"
    [again] = Backend.run_model(model, arrays, runtime=runtime)
    np.testing.assert_array_equal(again, by_name)
    assert Backend.supports_device("CPU")
    assert not Backend.supports_device("abacus")


def test_number_of_inputs() -> None:
    """Inputs given as a sequence must be as many as the model's."""
    model, arrays = a_model()
    with pytest.raises(ValueError) as caught:
        Backend.prepare(model).run([arrays["X"]])
    assert str(caught.value) == "[Backend] inputs: expected X, W, R, which are 3, got 1"


def test_mistakes() -> None:
    """A path instead of a model, an array alone, and names that the model lacks or needs."""
    model, arrays = a_model()
    expected = "[Backend] model: expected an onnx.ModelProto, as from onnx.load(path), got str"
    with pytest.raises(TypeError, match=f"^{re.escape(expected)}$"):
        Backend.prepare("model.onnx")
    prepared = Backend.prepare(model)
    with pytest.raises(TypeError, match=r"^\[Backend\] inputs: expected X, W, R in a dict or a list, got an array$"):
        prepared.run(arrays["X"])
    with pytest.raises(ValueError, match=r"^\[Backend\] inputs: expected X, W, R, got x$"):
        prepared.run({**arrays, "x": arrays["X"]})
    with pytest.raises(ValueError, match=r"^\[Backend\] inputs: expected X, W, R, got no R, X$"):
        prepared.run({"W": arrays["W"]})


def test_shapes_that_models_leave_out() -> None:
    """Models run without shapes of inputs and outputs and without types of outputs, as in onnxruntime."""
    model, arrays = a_model()
    [wanted] = Backend.prepare(model).run(arrays)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    [got] = Backend.prepare(model).run(arrays)
    np.testing.assert_array_equal(got, wanted)
    model.graph.output[0].ClearField("type")
    before = model.SerializeToString()
    [got] = Backend.prepare(model).run(arrays)
    np.testing.assert_array_equal(got, wanted)
    assert model.SerializeToString() == before


def test_malformed_attributes() -> None:
    """Undecodable bytes are found when the model is prepared, also in a branch that is not taken."""
    model, _ = a_model()
    broken = onnx.AttributeProto(name="direction", type=onnx.AttributeProto.STRING, s=b"\xff")
    model.graph.node[0].attribute.append(broken)
    message = "[RNN] direction: expected UTF-8, got b'\\xff'"
    with pytest.raises(ValueError) as caught:
        Backend.prepare(model)
    assert str(caught.value) == message
    results = [helper.make_tensor_value_info("Z", 1, ("T", "D", "N", "H"))]
    branch = helper.make_graph(list(model.graph.node), "branch", [], results)
    choice = helper.make_node("If", ["which"], ["Z"], then_branch=branch, else_branch=branch)
    which = helper.make_tensor_value_info("which", onnx.TensorProto.BOOL, ())
    graph = helper.make_graph([choice], "graph", [*model.graph.input, which], results)
    with pytest.raises(ValueError) as caught:
        Backend.prepare(helper.make_model(graph, opset_imports=model.opset_import, ir_version=8))
    assert str(caught.value) == message
