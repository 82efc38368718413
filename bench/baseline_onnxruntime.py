"""ONNX Runtime on the CPU: a model of one LSTM or GRU node with the same weights. Forward only."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
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
    library = modules.onnxruntime
    options = library.SessionOptions()
    options.intra_op_num_threads = THREADS
    options.inter_op_num_threads = 1
    session = library.InferenceSession(_model(modules.onnx, arrays), options, providers=["CPUExecutionProvider"])
    given = {"X": arrays.given["source"]}

    def work() -> Any:
        return session.run(["Y"], given)[0]  # [T, 1, N, H]

    def answer() -> Mapping[str, npt.NDArray[Any]]:
        return {"output": work()[:, 0]}

    driver = f"ONNX Runtime {library.__version__}, {THREADS} threads"
    return Contender("onnxruntime", cpu_name(), driver, lambda: {HOST_CALL: timed(work)}, answer)


def _model(onnx: Any, arrays: Arrays) -> bytes:
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    sizes, cell = arrays.sizes, arrays.cell
    initializers = [onnx.numpy_helper.from_array(array, name) for name, array in onnx_weights(arrays).items()]
    node = helper.make_node(
        cell.upper(),
        ["X", "W", "R", "B"],
        ["Y"],
        hidden_size=sizes.H,
        **({"linear_before_reset": 1} if cell == "gru" else {}),
    )
    source = helper.make_tensor_value_info("X", floats, [sizes.T, sizes.N, sizes.I])
    output = helper.make_tensor_value_info("Y", floats, [sizes.T, 1, sizes.N, sizes.H])
    graph = helper.make_graph([node], cell, [source], [output], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    serialized: bytes = model.SerializeToString()
    return serialized


def onnx_weights(arrays: Arrays) -> dict[str, Floats]:
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
