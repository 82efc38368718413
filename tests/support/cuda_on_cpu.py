"""Calls on CUDA devices without a GPU: the CPU computes them, in the memory that a device would be given."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vkrnn import results
from vkrnn._ops import calls


def install(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Let vkrnn.torch's calls in place compute on the CPU. Return what passes for the device."""
    import torch  # noqa: PLC0415

    from vkrnn.torch import _cuda_calls, _kept_cuda  # noqa: PLC0415

    device = _Device(_open=lambda _: device, rounds_products=False, closed=False, lost=False)
    monkeypatch.setattr(_cuda_calls._core, "CudaCall", _Call)
    monkeypatch.setattr(_cuda_calls, "cuda_device", lambda *_: device)
    monkeypatch.setattr(_kept_cuda, "cuda_device", lambda *_: device)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 0, raising=False)
    return device


class _Device(SimpleNamespace):
    __hash__ = object.__hash__  # as part of a key


class _Call:
    """A stand-in for `_core.CudaCall`."""

    def __init__(
        self, device: Any, cell: str, gradients: Any, descriptor: Any, given: Any, _rounds: Any, lengths: Any = None
    ) -> None:
        assert {dtype for _, dtype, _ in given} == {"float64"}
        self._device = device
        self._function = f"{cell}_gradients" if gradients else cell
        self._descriptor = descriptor
        self._given = [(name, shape, np.float64) for name, _, shape in given]
        arrays = [np.zeros(shape) for _, shape, _ in self._given]
        if lengths is not None:
            self._given.append(("lengths", lengths.shape, np.int32))
            arrays.append(lengths)
        self.results = tuple((name, array.shape) for name, array in self._computed(arrays).items())

    @property
    def layer_bytes(self) -> int:
        """Those for the sum of the biases, and for all cells if there are several steps."""
        return 8 * (self._count("bias") + self._cells())

    def _cells(self) -> int:
        shapes = [shape for _, shape in self.results]
        return int(np.prod(shapes[1])) if len(shapes) > 1 and shapes[1][0] > 1 else 0

    def _count(self, argument: str) -> int:
        return sum(int(np.prod(shape)) for name, shape, _ in self._given if name == argument)

    def run_layer(
        self,
        source: int,
        weights: Any,
        starts: Any,
        output: int,
        ends: Any,
        stream: int,
        memory: int,
        count: int,
        allocate: Any,
    ) -> int | None:
        """Compute the results with what the layer has, as the binding does."""
        if self._device.closed or self._device.lost:
            return None
        H = int(self.results[0][1][2])
        known = dict(zip(("init_state", "init_cell"), starts, strict=False), source=source, bias=memory)
        known |= dict(zip(("input_weight", "recurrent_weight"), weights[:2], strict=True))
        known |= {"secondary_bias": weights[3] + 16 * H, "peephole": weights[4]}
        results, after = [output, memory + 8 * self._count("bias")][: len(ends)], []
        for number, (_, shape) in enumerate(self.results):
            if number == 1 and not self._cells():
                results[1] = ends[1]
                continue
            step = 8 * int(np.prod(shape[1:]))
            after.append((ends[number], results[number] + (shape[0] - 1) * step, step))
        taken = 1000
        left = count - self.layer_bytes
        assert left >= 0
        own = memory + self.layer_bytes if taken <= left else allocate(taken)
        biases = (memory, *weights[2:4]) if self._count("bias") else None
        self.run([known[name] for name, *_ in self._given], results, stream, lambda _: own, after, biases)
        return taken

    def run(
        self, addresses: Any, results: Any, _stream: int, allocate: Any, after: Any = (), biases: Any = None
    ) -> None:
        """Compute the results after the biases' sum and before the copies. Temporary memory is written last."""
        own = allocate(1000)
        if biases is not None:
            count = self._count("bias")
            added = count // 3 * 2 if self._count("secondary_bias") else count
            total, first, second = (_at(address, (count,)) for address in biases)
            total[...] = first
            total[:added] += second[:added]
        given = [_at(address, *kind) for address, (_, *kind) in zip(addresses, self._given, strict=True)]
        for address, array in zip(results, self._computed(given).values(), strict=True):
            _at(address, array.shape)[...] = array
        _at(own, (1000,), np.uint8)[...] = 255
        self._copy(after)

    def _computed(self, arrays: Any) -> dict[str, Any]:
        given = {name: array for (name, *_), array in zip(self._given, arrays, strict=True)}
        given |= {"descriptor": self._descriptor}
        return dict(calls.run(results.Results, self._function, given)._asdict())

    @staticmethod
    def _copy(copies: Any) -> None:
        for to, source, count in copies:
            _at(to, (count,), np.uint8)[...] = _at(source, (count,), np.uint8)


def _at(address: int, shape: Any, dtype: Any = np.float64) -> Any:
    """Return an array in memory that something else owns."""
    count = int(np.prod(shape))
    memory = (ctypes.c_char * (count * np.dtype(dtype).itemsize)).from_address(address)
    return np.frombuffer(memory, dtype).reshape(shape)
