"""Calls on tensors: in host memory by vkrnn's device, and in place on a CUDA device, on PyTorch's current stream."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vkrnn import _core
from vkrnn._ops.cuda import cuda_device
from vkrnn.devices import Device, resolve
from vkrnn.precision import block_precision
from vkrnn.torch._threads import pytorch_threads

__all__ = ["ALL", "KEYS", "Kind", "Planned", "keep_until_read", "may_round", "on_device", "plan", "run"]

KEYS = ("CPU", "CUDA")
"""PyTorch's dispatch keys of the devices that calls run on."""

ALL = -1
"""The layer of tensors that have equal parts for all layers."""

_WHERE = "[vkrnn.torch]"
_NUMPY: dict[torch.dtype, np.dtype[Any]] = {
    torch.float16: np.dtype(np.int16),  # bits
    torch.bfloat16: np.dtype(np.int16),
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
}
# Of PyTorch 2.9 or later. torch.backends.cudnn.rnn.fp32_precision is the same, and takes twice as long.
_fp32_precision = getattr(torch._C, "_get_fp32_precision_getter", None)  # noqa: SLF001


class Kind:
    """What calls have in common, except for sizes, device and precision. Make one for all equal calls.

    Parameters
    ----------
    cell, descriptor, gradients
        The operation of each layer.
    names
        The operands: the name of the argument, or "between", and the layer.
    layers, trained
        The number of layers, and the first one with training states.
    packed, torch_layout
        As in the core's CallForm.
    """

    __slots__ = ("cell", "descriptor", "gradients", "layers", "names", "packed", "torch_layout", "trained")

    def __init__(
        self,
        cell: str,
        descriptor: Any,
        names: Sequence[tuple[str, int]],
        *,
        gradients: bool,
        layers: int = 1,
        trained: int = 0,
        packed: bool = False,
        torch_layout: bool = False,
    ) -> None:
        self.cell, self.descriptor, self.names, self.gradients = cell, descriptor, tuple(names), gradients
        self.layers, self.trained, self.packed, self.torch_layout = layers, trained, packed, torch_layout


class Planned(NamedTuple):
    """A checked call that can run many times."""

    kind: Kind
    core: _core.TensorCall
    names: tuple[tuple[str, int], ...]  # of the results, with their layers
    shapes: tuple[tuple[int, ...], ...]
    owner: Device
    dtype: torch.dtype | None  # of all operands; None if they differ
    operands: tuple[tuple[int, ...], ...]  # their shapes
    backward: dict[tuple[bool, ...], Planned]  # gradient calls, by which upstream gradients there are and by precision

    def takes(self, tensors: Sequence[Tensor]) -> bool:
        """Return whether the call can run again on these tensors, which are on its device, without lengths."""
        if not self.core.usable:
            return False
        for tensor, shape in zip(tensors, self.operands, strict=True):
            if tensor.shape != shape or tensor.dtype is not self.dtype or not tensor.is_contiguous():
                return False
        return True

    def run_on_host(self, operands: Sequence[Tensor]) -> list[np.ndarray[Any, Any]]:
        """Run on contiguous operands in host memory, and return the results, whose dtype has the operands' size."""
        addresses = [each.data_ptr() for each in operands]
        with pytorch_threads:
            return self.core.run_on_host(addresses, self.owner, _NUMPY[operands[0].dtype])

    def run(self, operands: Sequence[Tensor]) -> dict[tuple[str, int], Tensor]:
        """Run on contiguous operands, of which the source is the first, and return the results."""
        source = operands[0]
        if _in_place(source):
            found = [source.new_empty(shape) for shape in self.shapes]
            memory = Temporary(source)
            count = self.core.bytes
            first = memory.allocate(count) if count else 0
            addresses, results = ([each.data_ptr() for each in tensors] for tensors in (operands, found))
            stream = current_stream(source.get_device())
            self.core.run(addresses, results, stream, first, count if first else 0, memory.allocate)
        else:
            found = [torch.from_numpy(array) for array in self.run_on_host(operands)]
            if source.itemsize == 2:
                found = [each.view(source.dtype) for each in found]
        kind, named = self.kind, dict(zip(self.names, found, strict=True))
        if kind.gradients and kind.trained:
            for (_, layer), tensor in named.items():
                if layer == ALL:
                    tensor.unflatten(0, (kind.layers, -1))[: kind.trained].zero_()  # of layers without gradients
        return named


class _Numbers:
    """The numbers of lengths. All are equal, because plans do not depend on them."""

    def __init__(self, numbers: Any) -> None:
        self.numbers = numbers

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Numbers)

    def __hash__(self) -> int:
        return 0


def plan(kind: Kind, tensors: Sequence[Tensor], lengths: Tensor | None = None) -> tuple[Planned, list[Tensor]]:
    """Check a call, and return its plan and the operands as calls read them: contiguous, and with the lengths.

    Raises
    ------
    RuntimeError
        If tensors other than the lengths are on different devices.
    TypeError, ValueError, DeviceError
        As the functions of `vkrnn`.
    """
    source = tensors[0]
    operands = [each if each.is_contiguous() else each.contiguous() for each in tensors]
    device, dtype = source.device, source.dtype
    dtypes: Any = dtype
    for (name, _), tensor in zip(kind.names, tensors, strict=True):
        if tensor.device != device:
            raise RuntimeError(
                f"[vkrnn.torch.{_function(kind)}] {name}: expected a tensor on {device}, where source is, "
                f"got one on {tensor.device}"
            )
        if tensor.dtype is not dtype:
            dtypes = tuple(each.dtype for each in tensors)
    in_place = _in_place(source)
    where = _WHERE if in_place else f"[{_function(kind)}]"
    owner = cuda_device(source.get_device(), where) if in_place else resolve(None, where)
    rounds = owner.rounds_products and may_round() if in_place else owner._rounds()
    given: tuple[Any, ...] = ()
    if lengths is not None:
        numbers = lengths.cpu().numpy()
        given = numbers.shape, numbers.dtype, int(numbers[0]) if kind.packed else None, _Numbers(numbers)
    shapes = tuple([each.shape for each in tensors])
    planned = _planned(owner._open(where), owner, kind, dtypes, shapes, rounds, *given)
    if lengths is not None:
        planned.core.check_lengths(numbers)
        operands.append(on_device(torch.from_numpy(numbers).to(torch.int32, copy=True), device))
    return planned, operands


def run(kind: Kind, tensors: Sequence[Tensor], lengths: Tensor | None = None) -> dict[tuple[str, int], Tensor]:
    """Run a call, and return its results by name and layer; see `plan` for the errors."""
    planned, operands = plan(kind, tensors, lengths)
    return planned.run(operands)


@functools.lru_cache(maxsize=1024)
def _planned(
    device: _core.Device,
    owner: Device,
    kind: Kind,
    dtypes: Any,
    shapes: tuple[tuple[int, ...], ...],
    rounds: bool,  # noqa: FBT001
    *lengths: Any,
) -> Planned:
    """Plan a call; the device is that of its `owner`."""
    each = dtypes if isinstance(dtypes, tuple) else (dtypes,) * len(shapes)
    D = 1 + kind.descriptor.bidirectional
    operands = []
    for (name, layer), dtype, shape in zip(kind.names, each, shapes, strict=True):
        wanted = list(shape)
        if kind.torch_layout and name == "recurrent_weight" and D == 2:
            wanted = [2, shape[0] // 2, *shape[1:]]
        operands.append((name, layer, str(dtype).removeprefix("torch."), wanted))
    core = _core.TensorCall(
        device,
        kind.cell,
        kind.descriptor,
        layers=kind.layers,
        gradients=kind.gradients,
        trained=kind.trained,
        operands=operands,
        lengths=lengths[-1].numbers if lengths else None,
        packed=kind.packed,
        torch_layout=kind.torch_layout,
        tf32=rounds,
    )
    names = tuple((name, layer) for name, layer, _ in core.results)
    dtype = None if isinstance(dtypes, tuple) else dtypes
    return Planned(kind, core, names, tuple(shape for *_, shape in core.results), owner, dtype, shapes, {})


def _in_place(source: Tensor) -> bool:
    """Return whether a call runs where its tensors are, on a CUDA device."""
    return bool(source.is_cuda)


def _function(kind: Kind) -> str:
    return f"{kind.cell}_gradients" if kind.gradients else kind.cell


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
        if tensor is not None and tensor.is_cuda and type(tensor) is not torch.nn.Parameter:
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


def may_round() -> bool:
    """Return whether float32 products may be rounded: as `fp32_precision` says, else PyTorch's settings for cuDNN."""
    precision: str | None = block_precision.get()
    if precision is None:
        precision = None if _fp32_precision is None else _fp32_precision("cuda", "rnn")
    if precision not in ("ieee", "tf32"):
        return bool(torch.backends.cudnn.allow_tf32)
    return precision == "tf32"
