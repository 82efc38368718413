"""Calls of the six operations on tensors, through NumPy in host memory and in place on a CUDA device."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vkrnn import _core, _packed
from vkrnn._calls import run
from vkrnn._cuda import cuda_device
from vkrnn._torch_tensors import to_array, to_tensor
from vkrnn.precision import block_precision
from vkrnn.results import Results
from vkrnn.torch._threads import pytorch_threads

__all__ = ["KEYS", "call", "may_round"]

KEYS = ("CPU", "CUDA")
"""PyTorch's dispatch keys of the devices that calls run on."""

_WHERE = "[vkrnn.torch]"
_rnn_settings = getattr(torch.backends.cudnn, "rnn", None)  # looked up once, because that takes a microsecond


def call(
    function: str, given: Mapping[str, Tensor | None], descriptor: Any, *, packed: bool = False
) -> dict[str, Tensor]:
    """Run an operation on the tensors that are not None, and return its results by name.

    If `packed`, sequences are packed: see `vkrnn._packed`. On a CUDA device, the call runs on PyTorch's current stream,
    and the results are in PyTorch's memory.

    Raises
    ------
    RuntimeError
        If tensors other than the lengths are on different devices.
    """
    tensors = {name: tensor for name, tensor in given.items() if tensor is not None}
    source = tensors["source"]
    for name, tensor in tensors.items():
        if tensor.device != source.device and name != "lengths":
            raise RuntimeError(
                f"[vkrnn.torch.{function}] {name}: expected a tensor on {source.device}, where source is, "
                f"got one on {tensor.device}"
            )
    if source.is_cuda:
        return _packed_on_cuda(function, tensors, descriptor) if packed else _on_cuda(function, tensors, descriptor)
    arrays: dict[str, Any] = {name: to_array(tensor) for name, tensor in tensors.items()}
    with pytorch_threads:
        if packed:
            results = _packed.call(function, arrays, descriptor)
        else:
            results = run(Results, function, {**arrays, "descriptor": descriptor})
    return {name: to_tensor(array) for name, array in results._asdict().items()}


_prepared = functools.lru_cache(maxsize=1024)(_core.CudaCall)
"""A call by everything that its plan depends on, checked once. The numbers of lengths are not among that."""


def _on_cuda(function: str, tensors: Mapping[str, Tensor], descriptor: Any) -> dict[str, Tensor]:
    source = tensors["source"]
    device = cuda_device(source.device.index, _WHERE)
    arrays = {name: tensor.contiguous() for name, tensor in tensors.items() if name != "lengths"}
    kinds = tuple((name, _dtype(tensor.dtype), tensor.shape) for name, tensor in arrays.items())
    cell = function.removesuffix("_gradients")
    key = device._open(_WHERE), cell, cell != function, descriptor, kinds, may_round() and device.rounds_products
    lengths = tensors.get("lengths")
    call = _prepared(*key) if lengths is None else _core.CudaCall(*key, lengths.cpu().numpy())
    results = {name: source.new_empty(shape) for name, shape in call.results}
    kept = []  # until the call is submitted; PyTorch's allocator reuses memory in the order of the stream

    def allocate(count: int) -> int:
        try:
            kept.append(source.new_empty(count, dtype=torch.uint8))
        except torch.OutOfMemoryError:
            return 0
        return int(kept[-1].data_ptr())

    stream = torch.cuda.current_stream(source.device).cuda_stream
    call.run(_addresses(arrays), _addresses(results), stream, allocate)
    return results


def _addresses(tensors: Mapping[str, Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors.values()]


def _packed_on_cuda(function: str, tensors: Mapping[str, Tensor], descriptor: Any) -> dict[str, Tensor]:
    """Pad the sequences, and pack the results."""
    lengths = tensors["lengths"].cpu().numpy()
    live = np.arange(lengths[0])[:, np.newaxis] < lengths
    rows = torch.from_numpy(np.flatnonzero(live)).to(tensors["source"].device)

    def pad(sequence: Tensor) -> Tensor:
        padded = sequence.new_zeros(live.size, sequence.shape[1])
        return padded.index_copy_(0, rows, sequence).view(*live.shape, -1)

    padded = {name: pad(tensor) if name in _packed.SEQUENCES else tensor for name, tensor in tensors.items()}
    results = _on_cuda(function, padded, descriptor)
    return {
        name: result.flatten(0, 1).index_select(0, rows) if name in _packed.SEQUENCES else result
        for name, result in results.items()
    }


@functools.cache
def _dtype(dtype: torch.dtype) -> str:
    """Return the dtype's name."""
    if dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise TypeError(f"{_WHERE} expected tensors of float16, bfloat16, float32 or float64, got {dtype}")
    return str(dtype).removeprefix("torch.")


def may_round() -> bool:
    """Return whether float32 products may be rounded: as `fp32_precision` says, else PyTorch's settings for cuDNN."""
    precision: str | None = block_precision.get()
    if precision is None:
        precision = getattr(_rnn_settings, "fp32_precision", None)  # of PyTorch 2.9 or later
    if precision not in ("ieee", "tf32"):
        return bool(torch.backends.cudnn.allow_tf32)
    return precision == "tf32"
