"""Prepared models that keep packed weights on the device give the same bits as without."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

import vkrnn
from oracles import require

onnx = require("onnx")

from onnx import helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from vkrnn.onnx import OPERATORS, Backend  # noqa: E402

prepare = partial(Backend.prepare, runtime="evaluator")

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
I, H = 24, 40
ATTRIBUTES: list[dict[str, Any]] = [
    {},
    {"direction": "reverse"},
    {"direction": "bidirectional"},
    {"layout": 1},
    {"layout": 1, "direction": "bidirectional", "clip": 0.5},
]


def draw(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).uniform(-0.3, 0.3, shape).astype(np.float32)


def weights_of(op: str, D: int) -> dict[str, Any]:
    G = GATES[op]
    found = {"W": draw(D, G * H, I), "R": draw(D, G * H, H), "B": draw(D, 2 * G * H)}
    return {**found, "P": draw(D, 3 * H)} if op == "LSTM" else found


def states_of(op: str) -> list[str]:
    return ["h", "c"] if op == "LSTM" else ["h"]


def node_of(op: str, **attributes: Any) -> Any:
    inputs = ["X", "W", "R", "B", "", *states_of(op), *(["P"] if op == "LSTM" else [])]
    return helper.make_node(op, inputs, ["Y", *(f"{s}_n" for s in states_of(op))], hidden_size=H, **attributes)


def floats(*names: str) -> list[Any]:
    return [helper.make_tensor_value_info(name, 1, None) for name in names]


def model_of(nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], initializers: dict[str, Any]) -> Any:
    tensors = [numpy_helper.from_array(array, name) for name, array in initializers.items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def plain(model: Any, given: dict[str, Any]) -> Any:
    """Return the outputs of the model with operators that keep no weights."""
    with vkrnn.Device("cpu ("):
        return ReferenceEvaluator(model, new_ops=OPERATORS).run(None, given)


def assert_same(got: Sequence[Any], wanted: Sequence[Any]) -> None:
    for one, other in zip(got, wanted, strict=True):
        assert one.shape == other.shape
        np.testing.assert_array_equal(one, other)


def all_calls(op: str, attributes: dict[str, Any]) -> Iterator[dict[str, Any]]:
    D = 2 if attributes.get("direction") == "bidirectional" else 1
    for T, N in itertools.product((1, 5), (1, 3)):
        x, states = draw(T, N, I), {name: draw(D, N, H) for name in states_of(op)}
        if attributes.get("layout"):
            x, states = x.swapaxes(0, 1), {name: state.swapaxes(0, 1) for name, state in states.items()}
        yield {"X": x, **states}


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("attributes", ATTRIBUTES)
def test_same_bits(op: str, attributes: dict[str, Any], runs: list[Any]) -> None:
    """For every kind of call. The first call does not use kept weights."""
    D = 2 if attributes.get("direction") == "bidirectional" else 1
    node = node_of(op, **attributes)
    model = model_of([node], floats("X", *states_of(op)), floats(*node.output), weights_of(op, D))
    prepared = prepare(model)
    prepared.run(next(all_calls(op, attributes)))
    for given in all_calls(op, attributes):
        runs.clear()
        assert_same(prepared.run(given), plain(model, given))
        assert len(runs) == 1


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("attributes", ATTRIBUTES)
def test_lengths(op: str, attributes: dict[str, Any], runs: list[Any]) -> None:
    """A node with `sequence_lens` keeps its weights, too."""
    D = 2 if attributes.get("direction") == "bidirectional" else 1
    node = node_of(op, **attributes)
    node.input[4] = "lengths"
    inputs = [*floats("X", *states_of(op)), helper.make_tensor_value_info("lengths", 6, None)]
    model = model_of([node], inputs, floats(*node.output), weights_of(op, D))
    prepared = prepare(model)
    for given in all_calls(op, attributes):
        N, T = given["X"].shape[:2] if attributes.get("layout") else given["X"].shape[1::-1]
        for lengths in ([T] * N, [T, 0, T - 1][:N], [0] * N):
            with_lengths = {**given, "lengths": np.array(lengths, np.int32)}
            wanted = plain(model, with_lengths)
            assert_same(prepared.run(with_lengths), wanted)
            runs.clear()
            assert_same(prepared.run(with_lengths), wanted)
            assert len(runs) == 1


def test_wrong_lengths(runs: list[Any]) -> None:
    """The errors are those of a model that keeps no weights. Integers that are not ONNX's type are read as well."""
    node = node_of("GRU")
    node.input[4] = "lengths"
    inputs = [*floats("X", "h"), helper.make_tensor_value_info("lengths", 6, None)]
    model = model_of([node], inputs, floats("Y"), weights_of("GRU", 1))
    given = {"X": draw(5, 2, I), "h": draw(1, 2, H)}
    prepared = prepare(model)
    prepared.run({**given, "lengths": np.array([3, 5], np.int32)})
    for wrong in ([3, 6], [-1, 5], [3], [[3, 5]], [3.0, 5.0]):
        array = np.array(wrong, np.float32 if isinstance(wrong[0], float) else np.int32)
        found = []
        for run in (prepared.run, lambda given: plain(model, given)):
            with pytest.raises(Exception) as error:
                run({**given, "lengths": array})
            found.append((error.type, str(error.value), str(error.value.__cause__)))
        assert found[0] == found[1]
    assert not runs
    wide = {**given, "lengths": np.array([3, 5], np.int64)}
    assert_same(prepared.run(wide), plain(model, wide))


def branch(value: float) -> Any:
    """Return a graph of constants around an LSTM. The names do not depend on the value."""
    weights = {name: array + np.float32(value) for name, array in weights_of("LSTM", 1).items()}
    constants = [
        helper.make_node("Constant", [], [name], value=numpy_helper.from_array(weights[name], name)) for name in "WP"
    ]
    initializers = [numpy_helper.from_array(weights[name], name) for name in "RB"]
    nodes = [*constants, node_of("LSTM"), helper.make_node("Neg", ["Y"], ["Z"])]
    return helper.make_graph(nodes, "branch", [], floats("Z", "h_n"), initializers)


def test_branches(runs: list[Any]) -> None:
    """Each branch of an If has its own weights, as initializers or constants."""
    chosen = helper.make_node("If", ["cond"], ["out", "state"], then_branch=branch(0), else_branch=branch(0.1))
    inputs = [helper.make_tensor_value_info("cond", 9, []), *floats("X", "h", "c")]
    model = model_of([chosen], inputs, floats("out", "state"), {})
    prepared = prepare(model)
    given = next(all_calls("LSTM", {}))
    for cond in (True, False, True, False, True, False):
        both = {**given, "cond": np.array(cond)}
        assert_same(prepared.run(both), plain(model, both))
    assert len(runs) == 4
    assert len(set(map(id, runs))) == 2


def test_outer_initializers(runs: list[Any]) -> None:
    """A branch can use initializers of the graph around it."""
    inner = helper.make_graph([node_of("GRU")], "branch", [], floats("Y", "h_n"))
    chosen = helper.make_node("If", ["cond"], ["out", "state"], then_branch=inner, else_branch=copy.deepcopy(inner))
    inputs = [helper.make_tensor_value_info("cond", 9, []), *floats("X", "h")]
    model = model_of([chosen], inputs, floats("out", "state"), weights_of("GRU", 1))
    given = {**next(all_calls("GRU", {})), "cond": np.array([False])}
    prepared = prepare(model)
    for _ in range(2):
        assert_same(prepared.run(given), plain(model, given))
    assert len(runs) == 1


def test_weights_that_may_change(runs: list[Any]) -> None:
    """Weights that are inputs, overridable initializers or results of nodes are read in each call."""
    given = next(all_calls("GRU", {}))
    weights = weights_of("GRU", 1)
    node = node_of("GRU")
    without = {name: array for name, array in weights.items() if name != "R"}
    models = [
        model_of([node], floats("X", "h", "R"), floats("Y"), without),
        model_of([node], floats("X", "h", "R"), floats("Y"), weights),
        model_of([helper.make_node("Neg", ["R_"], ["R"]), node], floats("X", "h", "R_"), floats("Y"), without),
    ]
    for model in models:
        prepared = prepare(model)
        name = model.graph.input[2].name
        changed = {**given, name: weights["R"].copy()}
        for _ in range(3):
            assert_same(prepared.run(changed), plain(model, changed))
            changed[name] *= 2
    assert not runs


def test_absent_outputs(runs: list[Any]) -> None:
    """Unnamed and missing outputs are not computed."""
    for outputs in (["Y", "", "c_n"], ["", "h_n"], ["Y"]):
        node = node_of("LSTM")
        del node.output[:]
        node.output.extend(outputs)
        model = model_of([node], floats("X", "h", "c"), floats(*filter(None, outputs)), weights_of("LSTM", 1))
        prepared, given = prepare(model), next(all_calls("LSTM", {}))
        for _ in range(2):
            assert_same(prepared.run(given), plain(model, given))
    assert len(runs) == 3


def test_nodes_of_two_calls_keep_no_weights(runs: list[Any]) -> None:
    """Nodes with different activations per direction are two calls."""
    functions = ["Sigmoid", "Tanh", "Sigmoid", "Relu"]
    other = node_of("GRU", direction="bidirectional", activations=functions)
    model = model_of([other], floats("X", "h"), floats("Y"), weights_of("GRU", 2))
    prepared, given = prepare(model), {"X": draw(5, 2, I), "h": draw(2, 2, H)}
    for _ in range(2):
        assert_same(prepared.run(given), plain(model, given))
    assert not runs


def test_errors() -> None:
    """The errors are those of a model that keeps no weights."""
    model = model_of([node_of("LSTM", name="encoder")], floats("X", "h", "c"), floats("Y"), weights_of("LSTM", 1))
    prepared = prepare(model)
    right = next(all_calls("LSTM", {}))
    prepared.run(right)
    for wrong in (
        {"X": right["X"][..., 1:]},
        {"X": right["X"].astype(np.float64)},
        {"X": right["X"][0]},
        {"h": right["h"][..., 1:]},
    ):
        found = []
        for run in (prepared.run, lambda given: plain(model, given)):
            with pytest.raises(Exception) as error:
                run({**right, **wrong})
            found.append((error.type, str(error.value), str(error.value.__cause__)))
        assert found[0] == found[1]
        assert_same(prepared.run(right), plain(model, right))


def test_threads(runs: list[Any]) -> None:
    """Several threads may run a prepared model at once."""
    model = model_of([node_of("LSTM")], floats("X", "h", "c"), floats("Y"), weights_of("LSTM", 1))
    prepared = prepare(model)
    given = [{"X": draw(5, N, I), "h": draw(1, N, H), "c": draw(1, N, H)} for N in range(1, 5)]
    wanted = [plain(model, each) for each in given]
    prepared.run(given[0])
    with ThreadPoolExecutor(4) as pool:
        for _ in range(20):
            for got, right in zip(pool.map(prepared.run, given), wanted, strict=True):
                assert_same(got, right)
    assert len(runs) == 80
