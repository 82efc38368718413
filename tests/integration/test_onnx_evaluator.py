"""Nodes that ONNX's evaluator computes wrong are refused, and their right neighbours give onnxruntime's results."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from oracles import require

onnx = require("onnx")
onnxruntime = require("onnxruntime")

from onnx import helper, numpy_helper  # noqa: E402

from vkrnn.onnx import Backend  # noqa: E402

prepare = partial(Backend.prepare, runtime="evaluator")


def draw(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype(np.float32)


def model_of(node: Any, opset: int, x: Any, constants: Sequence[Any] = (), shape: Any = "known") -> Any:
    """Return a model of one node whose first input is x. The others are constants."""
    tensors = [numpy_helper.from_array(array, name) for name, array in zip(node.input[1:], constants, strict=True)]
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    source = helper.make_tensor_value_info("x", kind, x.shape if shape == "known" else shape)
    results = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = helper.make_graph([node], "graph", [source], results, [each for each in tensors if each.name])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def node_of(op: str, constants: int = 0, outputs: Sequence[str] = ("y",), **attributes: Any) -> Any:
    names = ["x", *(f"c{i}" for i in range(constants))]
    return helper.make_node(op, names, list(outputs), "it", **attributes)


STATISTICS = [np.ones(3, np.float32), np.zeros(3, np.float32), np.full(3, 0.5, np.float32), np.full(3, 2, np.float32)]
NO_SCALES = np.zeros(0, np.float32)
BOXES = [np.array([[0, 0, 4, 4]], np.float32), np.array([0])]
POOL = {"kernel_shape": [2], "strides": [2], "ceil_mode": 1}

WRONG: list[tuple[Any, int, Any, list[Any], str]] = [
    (
        node_of("BatchNormalization", 4),
        9,
        np.arange(15, dtype=np.float32).reshape(1, 3, 5),
        STATISTICS,
        "momentum: expected 1, or an opset from 14 on, got 0.9 in opset 9: ONNX's evaluator mixes the mean and "
        "variance of the batch into the given ones",
    ),
    (
        node_of("ConvTranspose", 1, group=2),
        17,
        draw(1, 4, 4),
        [draw(4, 2, 3)],
        "group: expected 1, or groups of one input and one output channel without a bias, got 2: ONNX's evaluator "
        "takes the weights and biases of other groups",
    ),
    (
        node_of("ConvTranspose", 2, group=4),
        11,
        draw(1, 4, 4),
        [draw(4, 1, 3), draw(4)],
        "group: expected 1, or groups of one input and one output channel without a bias, got 4: ONNX's evaluator "
        "takes the weights and biases of other groups",
    ),
    (
        node_of("GlobalMaxPool"),
        17,
        draw(2, 4, 6),
        [],
        "X: expected 4 axes, got 3 axes: ONNX's evaluator reduces the last two axes of any number",
    ),
    (
        node_of("GridSample", 1, mode="cubic", padding_mode="border"),
        20,
        draw(1, 2, 4, 5),
        [draw(1, 3, 3, 2)],
        "padding_mode: expected zeros or reflection with mode cubic, got border: ONNX's evaluator clamps the "
        "grid's points",
    ),
    (
        node_of("LpNormalization", p=1),
        17,
        draw(3, 4),
        [],
        "p: expected 2, got 1: ONNX's evaluator adds numbers instead of their magnitudes",
    ),
    (
        node_of("LpPool", **POOL),
        18,
        draw(1, 2, 9),
        [],
        "ceil_mode: expected 0, or windows that end where the padded input does, got 1: ONNX's evaluator scales up the "
        "sums of windows that reach beyond the end",
    ),
    (
        node_of("MaxPool", outputs=["y", "z"], kernel_shape=[2, 2]),
        12,
        draw(1, 2, 5, 6),
        [],
        "Indices: expected no such output with all strides 1, got one: ONNX's evaluator returns wrong indices",
    ),
    (
        node_of("Resize", 2, mode="linear", coordinate_transformation_mode="align_corners"),
        13,
        draw(1, 1, 5, 6),
        [NO_SCALES, np.array([1, 1, 1.5, 1.5], np.float32)],
        "scales: expected numbers that give whole lengths with align_corners, got [1.0, 1.0, 1.5, 1.5]: ONNX's "
        "evaluator does not round the lengths",
    ),
    (
        node_of("RoiAlign", 2, output_height=2, output_width=2, sampling_ratio=2),
        10,
        draw(1, 2, 6, 6),
        BOXES,
        "X: expected an opset from 16 on, got 10: ONNX's evaluator moves the regions by half a pixel",
    ),
    *(
        (
            node_of(op),
            12,
            draw(2, 4, 6),
            [],
            "axis: expected the last axis, or an opset from 13 on, got 1 of 3 axes in opset 12: ONNX's evaluator "
            "does not take this axis and those after it as one",
        )
        for op in ("Softmax", "LogSoftmax", "Hardmax")
    ),
]
RIGHT: list[tuple[Any, int, Any, list[Any]]] = [
    (node_of("BatchNormalization", 4), 14, draw(2, 3, 5), STATISTICS),
    (node_of("BatchNormalization", 4, momentum=1.0), 9, draw(2, 3, 5), STATISTICS),
    (node_of("ConvTranspose", 2), 17, draw(1, 4, 4), [draw(4, 2, 3), draw(2)]),
    (node_of("ConvTranspose", 1, group=4), 17, draw(1, 4, 4), [draw(4, 1, 3)]),
    (node_of("GlobalMaxPool"), 17, draw(2, 4, 6, 5), []),
    (node_of("GridSample", 1, mode="cubic"), 20, draw(1, 2, 4, 5), [draw(1, 3, 3, 2)]),
    (node_of("LpNormalization"), 17, draw(3, 4), []),
    (node_of("LpPool", **POOL), 18, draw(1, 2, 8), []),
    (node_of("LpPool", kernel_shape=[2], strides=[2]), 18, draw(1, 2, 9), []),
    (node_of("MaxPool", kernel_shape=[2, 2]), 12, draw(1, 2, 5, 6), []),
    (node_of("MaxPool", outputs=["y", "z"], kernel_shape=[2, 2], strides=[2, 2]), 12, draw(1, 2, 5, 6), []),
    (
        node_of("Resize", 2, mode="linear", coordinate_transformation_mode="align_corners"),
        13,
        draw(1, 1, 5, 6),
        [NO_SCALES, np.array([1, 1, 0.6, 1.5], np.float32)],
    ),
    (node_of("RoiAlign", 2, output_height=2, output_width=2, sampling_ratio=2), 16, draw(1, 2, 6, 6), BOXES),
    (node_of("Softmax"), 13, draw(2, 4, 6), []),
    (node_of("Softmax"), 12, draw(4, 6), []),
    (node_of("Softmax", axis=-1), 12, draw(2, 4, 6), []),
]


def by_operator(value: Any) -> str:
    return value.op_type if hasattr(value, "op_type") else ""


@pytest.mark.parametrize(("node", "opset", "x", "constants", "message"), WRONG, ids=by_operator)
def test_wrong_nodes(node: Any, opset: int, x: Any, constants: list[Any], message: str) -> None:
    """`prepare` refuses them by name, with the reason."""
    with pytest.raises(NotImplementedError) as caught:
        prepare(model_of(node, opset, x, constants))
    assert str(caught.value) == f"[{node.op_type} 'it'] {message}"


@pytest.mark.parametrize(("node", "opset", "x", "constants"), RIGHT, ids=by_operator)
def test_right_neighbours(node: Any, opset: int, x: Any, constants: list[Any]) -> None:
    """Nodes of these operators that the evaluator computes right still run."""
    model = model_of(node, opset, x, constants)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for got, wanted in zip(prepare(model).run({"x": x}), session.run(None, {"x": x}), strict=True):
        assert got.shape == wanted.shape
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_unknown_axes() -> None:
    """What depends on a number of axes that is not known is refused."""
    with pytest.raises(NotImplementedError) as caught:
        prepare(model_of(node_of("Softmax"), 12, draw(4, 6), shape=None))
    assert str(caught.value) == (
        "[Softmax 'it'] axis: expected the last axis, or an opset from 13 on, got 1 of an unknown number of axes in "
        "opset 12: ONNX's evaluator does not take this axis and those after it as one"
    )


def loop_model(shape: tuple[int, ...], cond: str = "yes") -> Any:
    """Return a model whose loop doubles x in each of three iterations, and collects the results."""
    nodes = [
        helper.make_node("Identity", ["go"], ["again"]),
        helper.make_node("Add", ["s", "s"], ["next"]),
        helper.make_node("Identity", ["next"], ["each"]),
    ]
    [count, go, again] = [
        helper.make_tensor_value_info(name, kind, []) for name, kind in (("i", 7), ("go", 9), ("again", 9))
    ]
    [state, after, each] = [helper.make_tensor_value_info(name, 1, shape) for name in ("s", "next", "each")]
    body = helper.make_graph(nodes, "body", [count, go, state], [again, after, each])
    node = helper.make_node("Loop", ["three", cond, "x"], ["last", "all"], "it", body=body)
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info("x", 1, shape)],
        [helper.make_tensor_value_info("all", 1, None)],
        [numpy_helper.from_array(np.array(3), "three"), numpy_helper.from_array(np.ones((), bool), "yes")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("shape", [(), (1, 4), (2, 4)])
def test_loops_with_scan_outputs(shape: tuple[int, ...]) -> None:
    """The evaluator is right for scan outputs with one axis, and for no others."""
    with pytest.raises(NotImplementedError) as caught:
        prepare(loop_model(shape))
    assert str(caught.value) == (
        f"[Loop 'it'] body: expected scan outputs with 1 axis, got 'each' with {len(shape)} axes: ONNX's evaluator "
        "adds no axis for the iterations"
    )
    prepared = prepare(loop_model((4,)))
    x = draw(4)
    [got] = prepared.run({"x": x})
    np.testing.assert_array_equal(got, np.stack([2 * x, 4 * x, 8 * x]))


def test_loops_without_a_condition() -> None:
    """The evaluator takes an absent condition as false."""
    with pytest.raises(NotImplementedError) as caught:
        prepare(loop_model((4,), ""))
    assert str(caught.value) == (
        "[Loop 'it'] cond: expected an input, got none: ONNX's evaluator then does no iterations"
    )


def test_nodes_within_nodes() -> None:
    """A node of a branch is refused, too. Its input's shape is known from the graph around it."""
    for shape, refused in (((2, 3, 4), True), ((2, 3), False)):
        branch = helper.make_graph(
            [helper.make_node("Softmax", ["z"], ["w"], "inner")],
            "branch",
            [],
            [helper.make_tensor_value_info("w", 1, None)],
        )
        nodes = [
            helper.make_node("Relu", ["x"], ["z"]),
            helper.make_node("If", ["yes"], ["y"], then_branch=branch, else_branch=branch),
        ]
        graph = helper.make_graph(
            nodes,
            "graph",
            [helper.make_tensor_value_info("x", 1, shape)],
            [helper.make_tensor_value_info("y", 1, None)],
            [numpy_helper.from_array(np.array([True]), "yes")],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=8)
        if refused:
            with pytest.raises(NotImplementedError, match=r"^\[Softmax 'inner'\] axis: "):
                prepare(model)
        else:
            assert prepare(model).run([draw(*shape)])[0].shape == shape
