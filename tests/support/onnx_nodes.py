"""ONNX's recurrent nodes with random inputs, and their results from onnxruntime and vkrnn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracles import require

onnx = require("onnx")
onnxruntime = require("onnxruntime")

from onnx import helper  # noqa: E402

from vkrnn.onnx import run_node  # noqa: E402

__all__ = [
    "DIRECTIONS",
    "GATES",
    "INPUTS",
    "OUTPUTS",
    "Array",
    "Arrays",
    "Drawn",
    "as_model",
    "by_onnxruntime",
    "by_vkrnn",
]

Array = NDArray[Any]
Arrays = dict[str, Array]

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
OUTPUTS = {"RNN": ["Y", "Y_h"], "GRU": ["Y", "Y_h"], "LSTM": ["Y", "Y_h", "Y_c"]}
INPUTS = ["X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"]
DIRECTIONS = ("forward", "reverse", "bidirectional")


@dataclass
class Drawn:
    """A node with its inputs, both random. `absent` inputs have no name in the node."""

    op: str
    sizes: tuple[int, int, int, int]
    direction: str = "forward"
    attributes: dict[str, Any] = field(default_factory=dict)
    absent: frozenset[str] = frozenset()
    seed: int = 0

    @property
    def arrays(self) -> Arrays:
        """The inputs that are present, in ONNX's layout."""
        T, N, I, H = self.sizes
        D, GH = 1 + (self.direction == "bidirectional"), GATES[self.op] * H
        rng = np.random.default_rng([self.seed, T, H, GH])

        def some(*shape: int) -> Array:
            return rng.uniform(-1, 1, shape).astype(np.float32)

        state = (N, D, H) if self.attributes.get("layout") else (D, N, H)
        arrays = {
            "X": some(*((N, T, I) if self.attributes.get("layout") else (T, N, I))),
            "W": some(D, GH, I) / np.float32(np.sqrt(I)),
            "R": some(D, GH, H) / np.float32(np.sqrt(H)),
            "B": some(D, 2 * GH),
            "sequence_lens": rng.integers(1, T + 1, N).astype(np.int32),
            "initial_h": some(*state),
            "initial_c": some(*state),
            "P": some(D, 3 * H),
        }
        left_out = self.absent | (set() if self.op == "LSTM" else {"initial_c", "P"})
        return {name: array for name, array in arrays.items() if name not in left_out}

    @property
    def node(self) -> Any:
        """The node. Absent inputs are left out at the end and have an empty name elsewhere."""
        given = self.arrays
        names = [name if name in given else "" for name in INPUTS]
        while not names[-1]:
            names.pop()
        return helper.make_node(
            self.op, names, OUTPUTS[self.op], hidden_size=self.sizes[3], direction=self.direction, **self.attributes
        )


def as_model(nodes: list[Any], arrays: Arrays, outputs: list[str]) -> Any:
    """Return a model of the nodes that takes the arrays."""
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in arrays.items()
    ]
    results = [helper.make_tensor_value_info(name, 1, None) for name in outputs]
    graph = helper.make_graph(nodes, "graph", given, results)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)


def by_onnxruntime(node: Any, arrays: Arrays) -> Arrays:
    """Return onnxruntime's outputs."""
    model = as_model([node], arrays, list(node.output)).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return dict(zip(node.output, session.run(None, arrays), strict=True))


def by_vkrnn(node: Any, arrays: Arrays, **options: Any) -> Arrays:
    """Return vkrnn's outputs."""
    return dict(zip(node.output, run_node(node, arrays, **options), strict=True))
