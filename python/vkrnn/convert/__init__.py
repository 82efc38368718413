"""Converts weights of other libraries to arguments and a descriptor for a call, and back; packed documents to resets.

The other library is imported when a function needs it.

>>> import numpy as np, torch, vkrnn  # doctest: +SKIP
>>> (layer,) = vkrnn.convert.from_torch(torch.nn.LSTM(3, 16))  # doctest: +SKIP
>>> vkrnn.lstm(np.ones((5, 1, 3), np.float32), **layer.arguments, descriptor=layer.descriptor)  # doctest: +SKIP
Results(lstm: output [5, 1, 16] float32)
"""

from vkrnn._ops.layer import Layer
from vkrnn.convert._documents import document_starts
from vkrnn.convert._keras import from_keras
from vkrnn.convert._onnx import from_onnx
from vkrnn.convert._torch import from_torch, to_torch
from vkrnn.convert._xlstm import from_xlstm

__all__ = ["Layer", "document_starts", "from_keras", "from_onnx", "from_torch", "from_xlstm", "to_torch"]
