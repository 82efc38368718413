"""Calls on CUDA devices without a GPU: the CPU computes them, in the memory that a device would be given."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vkrnn import _calls, results


def install(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Let vkrnn.torch's calls in place compute on the CPU. Return what passes for the device."""
    import torch  # noqa: PLC0415

    from vkrnn.torch import _cuda_calls, _kept_cuda  # noqa: PLC0415

    handle = object()
    device = SimpleNamespace(_open=lambda _: handle, rounds_products=False, closed=False, lost=False)
    monkeypatch.setattr(_cuda_calls._core, "CudaCall", _Call)
    monkeypatch.setattr(_cuda_calls, "cuda_device", lambda *_: device)
    monkeypatch.setattr(_kept_cuda, "cuda_device", lambda *_: device)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 0, raising=False)
    return device


class _Call:
    """A stand-in for `_core.CudaCall`."""

    def __init__(
        self, _device: Any, cell: str, gradients: Any, descriptor: Any, given: Any, _rounds: Any, lengths: Any = None
    ) -> None:
        assert {dtype for _, dtype, _ in given} == {"float64"}
        self._function = f"{cell}_gradients" if gradients else cell
        self._descriptor = descriptor
        self._given = [(name, shape, np.float64) for name, _, shape in given]
        arrays = [np.zeros(shape) for _, shape, _ in self._given]
        if lengths is not None:
            self._given.append(("lengths", lengths.shape, np.int32))
            arrays.append(lengths)
        self.results = tuple((name, array.shape) for name, array in self._computed(arrays).items())

    def run(self, addresses: Any, results: Any, _stream: int, allocate: Any, before: Any = (), after: Any = ()) -> None:
        """Compute the results after the first copies and before the last ones. Temporary memory is written last."""
        own = allocate(1000)
        self._copy(before)
        given = [_at(address, *kind) for address, (_, *kind) in zip(addresses, self._given, strict=True)]
        for address, array in zip(results, self._computed(given).values(), strict=True):
            _at(address, array.shape)[...] = array
        _at(own, (1000,), np.uint8)[...] = 255
        self._copy(after)

    def _computed(self, arrays: Any) -> dict[str, Any]:
        given = {name: array for (name, *_), array in zip(self._given, arrays, strict=True)}
        given |= {"descriptor": self._descriptor}
        return dict(_calls.run(results.Results, self._function, given)._asdict())

    @staticmethod
    def _copy(copies: Any) -> None:
        for to, source, count in copies:
            _at(to, (count,), np.uint8)[...] = _at(source, (count,), np.uint8)


def _at(address: int, shape: Any, dtype: Any = np.float64) -> Any:
    """Return an array in memory that something else owns."""
    count = int(np.prod(shape))
    memory = (ctypes.c_char * (count * np.dtype(dtype).itemsize)).from_address(address)
    return np.frombuffer(memory, dtype).reshape(shape)
