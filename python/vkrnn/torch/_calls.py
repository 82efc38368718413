"""Calls of the six operations on tensors, through NumPy in host memory and in place on a CUDA device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vkrnn._interop.torch_tensors import to_array, to_tensor
from vkrnn._ops import packed as _packed
from vkrnn._ops.calls import run
from vkrnn.results import Results
from vkrnn.torch._cuda_calls import InPlaceCall, on_device, require_device
from vkrnn.torch._threads import pytorch_threads

__all__ = ["KEYS", "call"]

KEYS = ("CPU", "CUDA")
"""PyTorch's dispatch keys of the devices that calls run on."""


def call(
    function: str, given: Mapping[str, Tensor | None], descriptor: Any, *, packed: bool = False
) -> dict[str, Tensor]:
    """Run an operation on the tensors that are not None, and return its results by name.

    If `packed`, sequences are packed: see `vkrnn._ops.packed`. On a CUDA device, the call runs on PyTorch's current
    stream, and the results are in PyTorch's memory.

    Raises
    ------
    RuntimeError
        If tensors other than the lengths are on different devices.
    """
    tensors = {name: tensor for name, tensor in given.items() if tensor is not None}
    source = tensors["source"]
    for name, tensor in tensors.items():
        if name != "lengths":
            require_device(function, name, tensor, source)
    if "lengths" in tensors:  # the host checks them
        tensors["lengths"] = tensors["lengths"].cpu()
    if source.is_cuda:
        return _packed_on_cuda(function, tensors, descriptor) if packed else _on_cuda(function, tensors, descriptor)
    arrays: dict[str, Any] = {name: to_array(tensor) for name, tensor in tensors.items()}
    with pytorch_threads:
        if packed:
            results = _packed.call(function, arrays, descriptor)
        else:
            results = run(Results, function, {**arrays, "descriptor": descriptor})
    return {name: to_tensor(array) for name, array in results._asdict().items()}


def _on_cuda(function: str, tensors: Mapping[str, Tensor], descriptor: Any) -> dict[str, Tensor]:
    source = tensors["source"]
    call = InPlaceCall(function, source)
    for name, tensor in tensors.items():
        if name not in ("source", "lengths"):
            call.give(name, tensor)
    results = {name: source.new_empty(shape) for name, shape in call.prepare(descriptor, tensors.get("lengths"))}
    call.run([tensor.data_ptr() for tensor in results.values()])
    return results


def _packed_on_cuda(function: str, tensors: Mapping[str, Tensor], descriptor: Any) -> dict[str, Tensor]:
    """Pad the sequences, and pack the results."""
    lengths = tensors["lengths"].numpy()
    live = np.arange(lengths[0])[:, np.newaxis] < lengths
    rows = on_device(torch.from_numpy(np.flatnonzero(live)), tensors["source"].device)

    def pad(sequence: Tensor) -> Tensor:
        padded = sequence.new_zeros(live.size, sequence.shape[1])
        return padded.index_copy_(0, rows, sequence).view(*live.shape, -1)

    padded = {name: pad(tensor) if name in _packed.SEQUENCES else tensor for name, tensor in tensors.items()}
    results = _on_cuda(function, padded, descriptor)
    return {
        name: result.flatten(0, 1).index_select(0, rows) if name in _packed.SEQUENCES else result
        for name, result in results.items()
    }
