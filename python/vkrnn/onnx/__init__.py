"""ONNX's RNN, GRU and LSTM on vkrnn's devices, as single nodes and in whole models. Needs the package onnx.

`run_node` computes one node. `Backend` runs a model: vkrnn computes the recurrent nodes, and onnxruntime all others.
Without onnxruntime, ONNX's own evaluator computes them in NumPy. `OPERATORS` are the operators for that evaluator. They
include DynamicQuantizeLSTM, which is an LSTM with weights in eight bits that onnxruntime makes.

>>> import numpy as np
>>> from onnx import helper
>>> from vkrnn.onnx import run_node
>>> node = helper.make_node("GRU", ["X", "W", "R"], ["Y", "Y_h"], hidden_size=4)
>>> X, W, R = (np.ones(shape, np.float32) for shape in [(5, 3, 7), (1, 12, 7), (1, 12, 4)])
>>> Y, Y_h = run_node(node, [X, W, R])
>>> Y.shape, Y_h.shape
((5, 1, 3, 4), (1, 3, 4))

All dtypes of ONNX's operators work: float32, float64, float16 and bfloat16. `docs/onnx.md` says what is refused.
"""

from __future__ import annotations

from vkrnn._base.packages import missing
from vkrnn.convert._onnx import from_onnx

try:
    from onnx import reference as _  # noqa: F401
except ImportError as error:
    raise missing("vkrnn.onnx", error, "onnx") from error

from vkrnn.onnx._backend import Backend, BackendRep
from vkrnn.onnx._choice import Runtime
from vkrnn.onnx._node import run_node
from vkrnn.onnx._operators import GRU, LSTM, OPERATORS, RNN, DynamicQuantizeLSTM

__all__ = [
    "GRU",
    "LSTM",
    "OPERATORS",
    "RNN",
    "Backend",
    "BackendRep",
    "DynamicQuantizeLSTM",
    "Runtime",
    "from_onnx",
    "run_node",
]
