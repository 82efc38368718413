"""ONNX Runtime on the CPU: a model of LSTM or GRU nodes, one for each layer, with the same weights. Forward only."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .common import HOST_CALL, THREADS, Contender, Floats, cpu_name, timed
from .problems import Arrays

OPSET = 14
IR_VERSION = 8
BLOCKS = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2)}  # ONNX: i, o, f, c and z, r, h; the arrays: i, f, z, o and r, z, o


class Modules(NamedTuple):
    """ONNX Runtime, and the modules that build its models."""

    onnx: Any
    onnxruntime: Any


def find_onnxruntime() -> Modules | None:
    """Return the modules, or nothing where one of them is not installed."""
    try:
        importlib.import_module("onnx.helper")
        return Modules(importlib.import_module("onnx"), importlib.import_module("onnxruntime"))
    except ImportError:
        return None


def runs_on_onnxruntime(cell: str, *, gradients: bool) -> bool:
    """Return whether ONNX Runtime has this operation."""
    return cell in BLOCKS and not gradients


def on_onnxruntime(modules: Modules, arrays: Arrays) -> Contender:
    """Return ONNX Runtime's forward call as a contender; the session, and with it the weights, is made once."""
    session, driver = session_of(modules, model_of(modules, arrays, arrays.sizes.T))
    given = {"X": arrays.given["source"]}

    def work() -> Any:
        return session.run(None, given)[0]  # [T, 1, N, H]

    def answer() -> Mapping[str, npt.NDArray[Any]]:
        return {"output": work()[:, 0]}

    return Contender("onnxruntime", cpu_name(), driver, lambda: {HOST_CALL: timed(work)}, answer)


def session_of(modules: Modules, model: Any) -> tuple[Any, str]:
    """Return ONNX Runtime's session of a model, and its version with the number of threads."""
    library = modules.onnxruntime
    options = library.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.inter_op_num_threads = 1
    session = library.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session, f"ONNX Runtime {library.__version__}, {THREADS} threads"


def model_of(modules: Modules, arrays: Arrays, steps: int, states: Sequence[str] = ()) -> Any:
    """Return a model of one node a layer.

    With `states`, a model of a single layer takes them by these names and returns the last ones as "h_n".
    """
    helper, floats = modules.onnx.helper, modules.onnx.TensorProto.FLOAT
    (_, N, I, H), cell = (getattr(arrays.sizes, letter) for letter in "TNIH"), arrays.cell
    last = [f"{state}_n" for state in states]
    names = ["", *map(str, range(1, 1 + len(arrays.above)))]  # of the layers
    options = {"hidden_size": H, **({"linear_before_reset": 1} if cell == "gru" else {})}
    nodes = []
    for below, name in zip(["", *names], names, strict=False):
        if name:
            nodes.append(helper.make_node("Squeeze", [f"Y{below}", "directions"], [f"X{name}"]))
        inputs = [f"{letter}{name}" for letter in "XWRB"]
        nodes.append(helper.make_node(cell.upper(), [*inputs, "", *states], [f"Y{name}", *last], **options))

    def value(name: str, *shape: int) -> Any:
        return helper.make_tensor_value_info(name, floats, shape)

    inputs = [value("X", steps, N, I), *(value(state, 1, N, H) for state in states)]
    outputs = [value(state, 1, N, H) for state in last] or [value(f"Y{names[-1]}", steps, 1, N, H)]
    weights = {"directions": np.array([1])} if arrays.above else {}
    for name, layer in zip(names, arrays.layers(), strict=True):
        weights |= {f"{letter}{name}": array for letter, array in _weights(layer).items()}
    initializers = [modules.onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, cell, inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def _weights(arrays: Arrays) -> dict[str, Floats]:
    """Return W [1, GH, I], R [1, GH, H] and B [1, 2GH], the biases of the input and of the recurrent product."""
    given, cell = arrays.given, arrays.cell
    recurrent_bias = np.zeros_like(given["bias"])
    if cell == "gru":
        recurrent_bias[2 * arrays.sizes.H :] = given["secondary_bias"]

    def ordered(array: Floats) -> Floats:
        blocks = array.reshape(len(BLOCKS[cell]), arrays.sizes.H, *array.shape[1:])
        return np.ascontiguousarray(blocks[list(BLOCKS[cell])].reshape(array.shape))

    return {
        "W": ordered(given["input_weight"])[None],
        "R": ordered(given["recurrent_weight"])[None],
        "B": np.concatenate([ordered(given["bias"]), ordered(recurrent_bias)])[None],
    }
