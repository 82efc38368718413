"""Helpers for tests of device arrays: opening devices, uploading arrays, comparing results."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal  # imported early: a child forked during an import would deadlock
from numpy.typing import NDArray

import vkrnn
from cases import Case, gradient_inputs, inputs
from vkrnn import _core
from vkrnn.results import Results

Array = NDArray[Any]

KINDS = ("float32", "float64", "float16", "bfloat16")
# Vulkan memory that the host maps if the device has it, and memory that it does not map, as on a discrete GPU.
VULKAN_WAYS = ("mapped", "staged")
# The same after the native CPU device, whose memory is the host's.
WAYS = ("native", *VULKAN_WAYS)


def is_native(device: vkrnn.Device) -> bool:
    """Return whether the device is the native CPU device."""
    return device.backend == "native"


@functools.cache
def _positions() -> dict[bool, int]:
    found: dict[bool, int] = {}
    chosen = [vkrnn.default_device()] if "VKRNN_TEST_DEVICE" in os.environ else []
    for device in (*chosen, *(each for each in vkrnn.devices() if each.backend != "cuda")):
        found.setdefault(is_native(device), device.index)
    return found


def position(*, native: bool) -> int:
    """Return the index of the native CPU device, or of a Vulkan device: that of VKRNN_TEST_DEVICE, else the first.

    Skips the test if there is no such device.
    """
    if native not in _positions():
        pytest.skip(f"no Vulkan device: {_core.vulkan_problem()}")
    return _positions()[native]


@contextmanager
def opened(way: str) -> Iterator[vkrnn.Device]:
    """Open a new device with memory of one of the `WAYS`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VKRNN_STAGING", "1" if way == "staged" else "0")
        device = vkrnn.Device(position(native=way == "native"))
        device._open()
    yield device
    device.close()


def shown_devices() -> str:
    """Return the list of devices in messages about an unknown device, with the reason why Vulkan has none."""
    names = ", ".join(f"{device.index}: {device.name}" for device in vkrnn.devices())
    problem = _core.vulkan_problem()
    return f"({names}; Vulkan: {problem})" if problem else f"({names})"


def sees(device: vkrnn.Device) -> bool:
    """Return whether NumPy can map the device's memory."""
    return vkrnn.empty(1, device=device).host_visible


def beside(other: vkrnn.Device, device: vkrnn.Device) -> str:
    """Return how a message that shows `device` shows `other`, since two devices on one GPU have the same repr."""
    return f"{'another ' if is_native(other) == is_native(device) else ''}{other!r}"


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the dtype of that name; bfloat16 is from ml_dtypes."""
    return np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if name == "bfloat16" else name)


def numbers(shape: tuple[int, ...], dtype: str = "float32", first: int = 1) -> Array:
    """Return consecutive small integers, none zero, which every dtype represents exactly."""
    size = int(np.prod(shape))
    return ((np.arange(size) + first - 1) % 100 + 1).reshape(shape).astype(dtype_of(dtype))


def put(arrays: Mapping[str, Array], device: vkrnn.Device | None = None) -> dict[str, Any]:
    """Put the arrays on the device."""
    return {name: vkrnn.asarray(array, device=device) for name, array in arrays.items()}


def shifted(array: Array, device: vkrnn.Device | None = None) -> vkrnn.Array:
    """Put an array on the device as a slice behind other elements, usually at an odd offset."""
    if array.ndim == 0:
        return vkrnn.asarray(np.stack([array, array]), device=device)[1]
    ahead = np.full((1, *array.shape[1:]), 7, array.dtype)
    return vkrnn.asarray(np.concatenate([ahead, array]), device=device)[1:]


def above(case: Case, forward: Results, dtype: np.dtype[Any], device: vkrnn.Device | None = None) -> dict[str, Any]:
    """Return what the gradients take besides the inputs; device arrays if the forward results are."""
    taken = gradient_inputs(case, forward)
    if not isinstance(forward.output, vkrnn.Array):
        return {name: array.astype(dtype, copy=False) for name, array in taken.items()}
    return {
        name: array if isinstance(array, vkrnn.Array) else vkrnn.asarray(array.astype(dtype), device=device)
        for name, array in taken.items()
    }


def everything(case: Case, device: vkrnn.Device | None = None, lengths: Array | None = None) -> dict[str, Array]:
    """Return the results of a case's training call and its gradients."""
    arrays = inputs(case)
    forward, gradients = (getattr(vkrnn, case.cell + ending) for ending in ("", "_gradients"))
    trained = forward(**arrays, lengths=lengths, descriptor=case.descriptor(training=True), device=device)
    upstream = gradient_inputs(case, trained)
    changed = gradients(**arrays, **upstream, lengths=lengths, descriptor=case.descriptor(), device=device)
    found: dict[str, Array] = trained._asdict() | {f"d {name}": array for name, array in changed._asdict().items()}
    return found


def assert_same_bits(got: Mapping[str, Array], wanted: Mapping[str, Array]) -> None:
    """Compare results in float32 bit for bit."""
    assert list(got) == list(wanted)
    for name, array in wanted.items():
        assert_array_equal(got[name].view(np.uint32), array.view(np.uint32), err_msg=name)


def assert_same_array(got: Any, wanted: Array) -> None:
    """Fail unless `got` is a device array with the same bits."""
    assert isinstance(got, vkrnn.Array)
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)
    copied = got.numpy()
    assert (copied.shape, copied.dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_array_equal(np.frombuffer(copied.tobytes(), np.uint8), np.frombuffer(wanted.tobytes(), np.uint8))


def assert_same(got: Results, wanted: Results) -> None:
    """Fail unless the results are device arrays with the names and bits of the NumPy results."""
    assert (got._fields, got._reasons) == (wanted._fields, wanted._reasons)
    for one, other in zip(got, wanted, strict=True):
        assert_same_array(one, other)
