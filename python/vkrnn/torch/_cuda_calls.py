"""A call of an operation in place on a CUDA device: on PyTorch's current stream, in PyTorch's memory."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vkrnn import _core
from vkrnn._ops.cuda import cuda_device
from vkrnn.precision import block_precision

__all__ = [
    "Biases",
    "Copy",
    "InPlaceCall",
    "Temporary",
    "current_stream",
    "keep_until_read",
    "may_round",
    "on_device",
    "require_device",
    "submit",
]

Copy = tuple[int, int, int]
"""A copy within a device's memory: the address to copy to, that to copy from, and the bytes."""

Biases = tuple[int, int, int]
"""The addresses of the argument `bias` and of PyTorch's two biases, whose sum it is.

If the call has the candidate's second bias as an argument, the sum's last third is that of the first bias alone.
"""

_WHERE = "[vkrnn.torch]"
# Of PyTorch 2.9 or later. torch.backends.cudnn.rnn.fp32_precision is the same, and takes twice as long.
_fp32_precision = getattr(torch._C, "_get_fp32_precision_getter", None)  # noqa: SLF001


class InPlaceCall:
    """A call to which arguments are given one after the other. Each step takes the host a microsecond or two."""

    def __init__(self, function: str, source: Tensor) -> None:
        self._function = function
        self._source = source
        self._device = source.device
        self.names: list[str] = []
        self._dtypes: list[torch.dtype] = []
        self._shapes: list[tuple[int, ...]] = []
        self.addresses: list[int] = []
        self._copies: list[Tensor] = []  # until the call is submitted; PyTorch reuses memory in the order of the stream
        self.give("source", source)

    def give(self, name: str, tensor: Tensor, shape: tuple[int, ...] | None = None, first: int = 0) -> None:
        """Add an argument. If there is a shape, it consists of the tensor's elements from the `first` one to the last.

        Raises
        ------
        RuntimeError
            If the tensor is on another device than the source, or has not as many elements.
        """
        if shape is not None and (wanted := first + math.prod(shape)) != tensor.numel():
            raise RuntimeError(
                f"[vkrnn.torch.{self._function}] {name}: expected a tensor with {wanted} elements, got {tensor.numel()}"
            )
        if tensor.device != self._device:
            require_device(self._function, name, tensor, self._source)
        if not tensor.is_contiguous():
            tensor = tensor.contiguous()
            self._copies.append(tensor)
        self.names.append(name)
        self._dtypes.append(tensor.dtype)
        self._shapes.append(tensor.shape if shape is None else shape)
        self.addresses.append(tensor.data_ptr() + (first and first * tensor.itemsize))

    def prepare(self, descriptor: Any, lengths: Tensor | None = None) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Check the call, and return the names and shapes of its results. The lengths are in the host's memory."""
        device = self.runs_on = cuda_device(self._source.get_device(), _WHERE)
        key = (
            device._open(_WHERE),
            self._function,
            descriptor,
            tuple(self.names),
            tuple(self._dtypes),
            tuple(self._shapes),
            may_round() and device.rounds_products,
        )
        if lengths is None:
            self.core, results = _known(*key)
        else:
            self.core, results = _checked(*key, lengths.numpy())
            read = on_device(lengths.to(torch.int32, copy=True), self._device)
            self._copies.append(read)
            self.addresses.append(read.data_ptr())
        return results

    def run(self, results: Sequence[int], after: Sequence[Copy] = (), biases: Biases | None = None) -> None:
        """Submit the call after `prepare`, with the addresses of its results; see `submit`."""
        submit(self.core, self._source, self.addresses, results, after, biases)


def submit(
    core: _core.CudaCall,
    source: Tensor,
    addresses: Sequence[int],
    results: Sequence[int],
    after: Sequence[Copy] = (),
    biases: Biases | None = None,
) -> None:
    """Submit a call to the source's device, with the addresses of arguments and results, and copies after it.

    If there are `biases`, they are added before the call.
    """
    core.run(addresses, results, current_stream(source.get_device()), Temporary(source).allocate, after, biases)


class Temporary:
    """Memory that a call takes for itself. Keep the object until the call is submitted.

    PyTorch reuses the memory in the order of the stream.
    """

    __slots__ = ("_source", "_tensors")

    def __init__(self, source: Tensor) -> None:
        self._source = source
        self._tensors: list[Tensor] = []

    def allocate(self, count: int) -> int:
        """Allocate `count` bytes on the source's device. Return their address, or 0 if memory runs out."""
        try:
            memory = self._source.new_empty(count, dtype=torch.uint8)
        except torch.OutOfMemoryError:
            return 0
        self._tensors.append(memory)
        address: int = memory.data_ptr()
        return address


def current_stream(ordinal: int) -> int:
    """Return PyTorch's current stream of a device. torch.cuda.current_stream takes longer."""
    stream: int = torch._C._cuda_getCurrentRawStream(ordinal)  # noqa: SLF001
    return stream


def keep_until_read(*tensors: Tensor | None) -> None:
    """Keep the memory of CUDA tensors from other uses until what the current stream does next with them is done.

    A backward pass reads the inputs of its forward pass, which autograd frees as soon as the pass is submitted. If an
    input was made on another stream, PyTorch would give its memory to the next tensor there, before it has been read.
    Parameters are left out, because their modules keep them.
    """
    for tensor in tensors:
        if tensor is not None and type(tensor) is not torch.nn.Parameter:
            ordinal = tensor.get_device()
            tensor.record_stream(_stream(ordinal, current_stream(ordinal)))


@functools.lru_cache(maxsize=64)
def _stream(ordinal: int, _address: int) -> torch.cuda.Stream:
    """Return the current stream, whose address is given. Making the object takes longer than looking it up."""
    return torch.cuda.current_stream(ordinal)


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device. If it is in pageable memory of the host, the host does not wait until it is there.

    CUDA reads such memory before the copy returns, so it may be freed or changed at once.

    Raises
    ------
    RuntimeError
        If a CUDA graph is captured, which would read that memory again when it is replayed.
    """
    if device.type != "cuda" or not tensor.is_cpu:
        return tensor.to(device)
    with torch.cuda.device(device):
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError(f"{_WHERE} lengths: a call with lengths cannot be captured in a CUDA graph")
        return tensor.to(device, non_blocking=True)


def require_device(function: str, name: str, tensor: Tensor, source: Tensor) -> None:
    """Raise RuntimeError if a tensor is on another device than the source."""
    if tensor.device != source.device:
        raise RuntimeError(
            f"[vkrnn.torch.{function}] {name}: expected a tensor on {source.device}, where source is, "
            f"got one on {tensor.device}"
        )


def _checked(
    device: _core.Device,
    function: str,
    descriptor: Any,
    names: tuple[str, ...],
    dtypes: tuple[torch.dtype, ...],
    shapes: tuple[tuple[int, ...], ...],
    rounds: bool,  # noqa: FBT001
    *lengths: Any,
) -> tuple[_core.CudaCall, tuple[tuple[str, tuple[int, ...]], ...]]:
    """Return a call that was checked and planned, and its results."""
    cell = function.removesuffix("_gradients")
    given = [(name, _name(dtype), shape) for name, dtype, shape in zip(names, dtypes, shapes, strict=True)]
    call = _core.CudaCall(device, cell, cell != function, descriptor, given, rounds, *lengths)
    return call, call.results


_known = functools.lru_cache(maxsize=1024)(_checked)
"""Calls without lengths, by everything that their plans depend on. The numbers of lengths are not among that."""


def _name(dtype: torch.dtype) -> str:
    if dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise TypeError(f"{_WHERE} expected tensors of float16, bfloat16, float32 or float64, got {dtype}")
    return str(dtype).removeprefix("torch.")


def may_round() -> bool:
    """Return whether float32 products may be rounded: as `fp32_precision` says, else PyTorch's settings for cuDNN."""
    precision: str | None = block_precision.get()
    if precision is None:
        precision = None if _fp32_precision is None else _fp32_precision("cuda", "rnn")
    if precision not in ("ieee", "tf32"):
        return bool(torch.backends.cudnn.allow_tf32)
    return precision == "tf32"
