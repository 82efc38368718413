"""Calls on CUDA devices without a GPU: the CPU computes them, in the memory that a device would be given."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vkrnn import _core
from vkrnn.devices import resolve


def install(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Let vkrnn.torch's calls in place compute on the CPU, by way of the default device. Return what passes for it."""
    import torch  # noqa: PLC0415

    from vkrnn.torch import _calls  # noqa: PLC0415

    device = _Device(_open=lambda _: device, rounds_products=False, closed=False, lost=False)
    monkeypatch.setattr(_calls, "_core", SimpleNamespace(TensorCall=_Call))
    monkeypatch.setattr(_calls, "cuda_device", lambda *_: device)
    monkeypatch.setattr(_calls, "_in_place", lambda _: True)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 0, raising=False)
    return device


class _Device(SimpleNamespace):
    __hash__ = object.__hash__  # as part of a key


class _Call:
    """A stand-in for a `_core.TensorCall` of float64 on a CUDA device."""

    def __init__(self, device: Any, *given: Any, **more: Any) -> None:
        self._device = device
        self._owner = resolve(None, "[test]")
        self._call = _core.TensorCall(self._owner._open("[test]"), *given, **more)
        self.results, self.check_lengths = self._call.results, self._call.check_lengths
        self.bytes = 0

    @property
    def usable(self) -> bool:
        """Return whether the device is neither closed nor lost."""
        return not (self._device.closed or self._device.lost)

    def run(self, operands: Any, results: Any, _stream: int, memory: int, count: int, allocate: Any) -> None:
        """Compute the results. Temporary memory is written last."""
        assert self.usable
        self.bytes = 1000
        own = memory if self.bytes <= count else allocate(self.bytes)
        arrays = self._call.run_on_host(operands, self._owner, np.dtype(np.float64))
        for address, array in zip(results, arrays, strict=True):
            ctypes.memmove(address, array.ctypes.data, array.nbytes)
        ctypes.memset(own, 255, self.bytes)
