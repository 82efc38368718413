"""Device arrays in other libraries: `__array__`, the buffer protocol and DLPack, and the lifetime of views."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import vkrnn
from resident import KINDS, Array, dtype_of, numbers, opened
from vkrnn import SingleGateRNNDescriptor

LINEAR = SingleGateRNNDescriptor(activation="none")


@pytest.fixture(name="mapped", scope="module", params=["native", "mapped"])
def _mapped(request: pytest.FixtureRequest) -> Iterator[vkrnn.Device]:
    with opened(request.param) as device:
        if not device.profile.unified_memory:
            pytest.skip("the host does not see this device's memory")
        yield device


@pytest.fixture(name="staged", scope="module")
def _staged() -> Iterator[vkrnn.Device]:
    with opened("staged") as device:
        yield device


def place(array: Array) -> int:
    """Return the address of a NumPy array."""
    return int(array.__array_interface__["data"][0])


def passed_on(array: vkrnn.Array, **rest: Any) -> vkrnn.Array:
    """Return a copy of the array [T, N, H], made by a call that may still be running."""
    weight = np.zeros((array.shape[-1],) * 2, array.dtype)
    result: vkrnn.Array = vkrnn.single_gate_rnn(array, weight, descriptor=LINEAR, **rest).output
    return result


# Devices whose memory the host can map

LOOKS: dict[str, Callable[[Any], Any]] = {
    "numpy": lambda array: array.numpy(),
    "asarray": np.asarray,
    "no copy": lambda array: np.asarray(array, copy=False) if np.__version__ >= "2" else np.asarray(array),
    "array method": lambda array: array.__array__(),
    "array method, no copy": lambda array: array.__array__(array.dtype, copy=False),
    "memoryview": lambda array: np.asarray(memoryview(array)),
    "dlpack": np.from_dlpack,
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("dtype", KINDS)
def test_views_share_the_arrays_memory(mapped: vkrnn.Device, dtype: str, look: str) -> None:
    """Every protocol waits for the call that writes the array and gives the same address; a part gives its own."""
    if dtype == "bfloat16" and look in ("memoryview", "dlpack"):
        pytest.skip(f"{look} does not support bfloat16")
    wanted = numbers((5, 3, 7), dtype)
    array = passed_on(vkrnn.asarray(wanted, device=mapped))
    seen = LOOKS[look](array)
    np.testing.assert_array_equal(seen, wanted)
    assert (seen.dtype, seen.shape, seen.flags.c_contiguous) == (wanted.dtype, wanted.shape, True)
    assert place(seen) == place(array.numpy())
    assert place(LOOKS[look](array[1:])) == place(seen) + wanted[0].nbytes
    np.testing.assert_array_equal(LOOKS[look](array[1:][2]), wanted[3])


@pytest.mark.parametrize("dtype", KINDS)
def test_views_and_calls_see_each_others_writes(mapped: vkrnn.Device, dtype: str) -> None:
    """A call reads what was written through a view; after a wait, the view shows what a call wrote."""
    array = vkrnn.zeros((5, 3, 7), dtype, device=mapped)
    view = array.numpy()
    assert view.flags.writeable
    view[...] = numbers((5, 3, 7), dtype)
    result = passed_on(array)
    seen = result.numpy()
    np.testing.assert_array_equal(seen, view)
    passed_on(vkrnn.zeros((5, 3, 7), dtype, device=mapped), out=result)
    result.wait()
    assert not seen.any()


def test_view_of_reused_memory_waits_for_its_last_use(mapped: vkrnn.Device) -> None:
    """A new array may reuse memory that a running call still writes. Viewing it waits for that call."""
    source = vkrnn.asarray(np.ones((2000, 8, 64), np.float32), device=mapped)
    weight = vkrnn.zeros((64, 64), device=mapped)
    for _ in range(3):
        vkrnn.single_gate_rnn(source, weight)  # its result is dropped at once
        view = vkrnn.empty(source.shape, device=mapped).numpy()
        view[...] = 3
        mapped.synchronize()
        assert (view == 3).all()


def test_conversions_copy(mapped: vkrnn.Device) -> None:
    """An explicit copy or a change of dtype makes new memory."""
    wanted = numbers((5, 3))
    array = vkrnn.asarray(wanted, device=mapped)
    for copy in (np.array(array), array.__array__(copy=True), array.__array__(np.float32, copy=True)):
        assert place(copy) != place(array.numpy())
        copy[:] = 0
    for wide in (np.asarray(array, np.float64), array.__array__(np.float64), array.__array__("f8", copy=True)):
        assert wide.dtype == np.float64
        np.testing.assert_array_equal(wide, wanted)
    np.testing.assert_array_equal(array.numpy(), wanted)
    with pytest.raises(ValueError) as caught:
        array.__array__(np.float64, copy=False)
    assert str(caught.value) == "[Array] copy=False: conversion to float64 needs a copy"


def test_memoryview(mapped: vkrnn.Device) -> None:
    """A memoryview has the right format and strides, and can be written through."""
    for dtype, code in (("float32", "f"), ("float64", "d"), ("float16", "e")):
        array: Any = vkrnn.asarray(numbers((5, 3), dtype), device=mapped)
        view: Any = memoryview(array)
        size = np.dtype(dtype).itemsize
        assert (view.format, view.itemsize, view.shape, view.strides) == (code, size, (5, 3), (3 * size, size))
        assert not view.readonly
        if dtype != "float16":  # memoryview cannot index float16
            view[4, 2] = 77.0
            assert array.numpy()[4, 2] == 77


def test_bfloat16_in_the_protocols(mapped: vkrnn.Device) -> None:
    """Buffers and DLPack refuse bfloat16; `numpy.asarray` works."""
    array: Any = vkrnn.asarray(numbers((5, 3), "bfloat16"), device=mapped)
    with pytest.raises(BufferError) as caught:
        memoryview(array)
    assert (
        str(caught.value.__cause__ or caught.value)
        == "[Array] the buffer protocol does not support bfloat16; use numpy.asarray"
    )
    with pytest.raises(BufferError) as caught:
        np.from_dlpack(array)
    assert str(caught.value) == "[Array] NumPy does not support bfloat16 in DLPack; use numpy.asarray"
    np.testing.assert_array_equal(np.asarray(array), numbers((5, 3), "bfloat16"))


def test_torch_from_dlpack(mapped: vkrnn.Device, torch: Any) -> None:
    """The tensor shares the array's memory, and writes are visible both ways."""
    array = vkrnn.asarray(numbers((5, 3)), device=mapped)
    tensor = torch.from_dlpack(array)
    assert tensor.data_ptr() == place(array.numpy())
    tensor[2, 1] = 99.0
    assert array.numpy()[2, 1] == 99
    np.testing.assert_array_equal(tensor.numpy(), array.numpy())


@pytest.mark.parametrize("look", [name for name in LOOKS if name != "no copy"])
@pytest.mark.parametrize("end", ["arrays", "close", "everything"])
@pytest.mark.parametrize("way", ["native", "mapped"])
def test_views_outlive_everything(way: str, look: str, end: str) -> None:
    """A view, and the result that it waits for, stays valid without its array, the device object, or after `close`."""
    device: vkrnn.Device | None
    with opened(way) as device:
        if not device.profile.unified_memory:
            pytest.skip("the host does not see this device's memory")
        wanted = numbers((50, 30, 40))
        array: vkrnn.Array | None = vkrnn.asarray(wanted, device=device)
        view = LOOKS[look](array)
        result = LOOKS[look](passed_on(vkrnn.asarray(wanted, device=device)))
        if end != "close":
            array = None
        if end != "arrays":
            device.close()
        else:  # freed memory may be reused, but not memory that is still viewed
            made = [vkrnn.zeros((50, 30, 40), device=device) for _ in range(4)]
            assert all(not other.numpy().any() for other in made)
        del device
    gc.collect()
    np.testing.assert_array_equal(view, wanted)
    np.testing.assert_array_equal(result, wanted)
    view[...] = 5
    assert (view == 5).all()
    assert array is None or end == "close"


def test_views_of_a_lost_device() -> None:
    """Existing views stay readable; making a new view raises the device's error."""
    with opened("mapped") as device:
        if not device.profile.unified_memory:
            pytest.skip("the host does not see this device's memory")
        array = vkrnn.asarray(numbers((5, 3, 7)), device=device)
        view = array.numpy()
        device._open().lose_for_test()
        late: Any = passed_on(array, name="late")
        with pytest.raises(vkrnn.DeviceError, match=r"^\[single_gate_rnn 'late'\] the device was lost: "):
            np.asarray(late)
        with pytest.raises(BufferError) as caught:
            memoryview(late)
        assert str(caught.value.__cause__).startswith("[single_gate_rnn 'late'] the device was lost: ")
        np.testing.assert_array_equal(view, numbers((5, 3, 7)))


# Devices whose memory the host cannot map


@pytest.mark.parametrize("dtype", KINDS)
def test_each_look_at_unmapped_memory_is_a_download(staged: vkrnn.Device, dtype: str) -> None:
    """Each conversion to NumPy makes a new copy, which `bytes_downloaded` counts."""
    wanted = numbers((5, 3, 7), dtype)
    array = passed_on(vkrnn.asarray(wanted, device=staged))
    assert not array.host_visible
    before = staged.statistics()["bytes_downloaded"]
    copies = [array.numpy(), np.asarray(array), np.array(array), array.__array__(), array.__array__(copy=True)]
    assert staged.statistics()["bytes_downloaded"] == before + 5 * wanted.nbytes
    assert len({place(copy) for copy in copies}) == 5
    for copy in copies:
        assert copy.dtype == wanted.dtype
        np.testing.assert_array_equal(copy, wanted)
        copy[...] = 0
    np.testing.assert_array_equal(array.numpy(), wanted)
    np.testing.assert_array_equal(array[1:][2].numpy(), wanted[3])
    wide = np.asarray(array, np.float64)
    np.testing.assert_array_equal(wide, wanted.astype(np.float64))


@pytest.mark.parametrize("dtype", KINDS)
def test_unmapped_memory_is_not_exported(staged: vkrnn.Device, dtype: str) -> None:
    """DLPack, memoryview and `copy=False` are refused with whole messages."""
    array: Any = vkrnn.asarray(numbers((5, 3), dtype), device=staged)
    message = f"[Array] the host cannot map the memory of {staged.name}; copy it with numpy()"
    with pytest.raises(BufferError) as caught:
        array.__dlpack__()
    assert str(caught.value) == message
    with pytest.raises(BufferError):
        np.from_dlpack(array)
    with pytest.raises(BufferError) as caught:
        memoryview(array)
    expected = (
        "[Array] the buffer protocol does not support bfloat16; use numpy.asarray" if dtype == "bfloat16" else message
    )
    assert str(caught.value.__cause__ or caught.value) == expected
    for other in (None, dtype_of(dtype), np.float32, np.float64):
        with pytest.raises(ValueError) as refused:
            array.__array__(other, copy=False)
        assert str(refused.value) == "[Array] copy=False: memory that the host cannot map must be copied"


def test_dlpack_device_is_the_cpu(either: vkrnn.Device) -> None:
    """`__dlpack_device__` names the CPU for every device, mapped or not."""
    assert vkrnn.zeros(3, device=either).__dlpack_device__() == (1, 0)
    assert dtype_of("float32") == vkrnn.zeros(3, device=either).dtype


@pytest.mark.parametrize("dtype", KINDS)
def test_copies_outlive_their_device(dtype: str) -> None:
    """A copy in NumPy's memory stays valid after the device is closed and deleted."""
    with opened("staged") as device:
        copy = passed_on(vkrnn.asarray(numbers((5, 3, 7), dtype), device=device)).numpy()
        large = passed_on(vkrnn.asarray(numbers((500, 30, 40), dtype), device=device)).numpy()
    del device
    gc.collect()
    np.testing.assert_array_equal(copy, numbers((5, 3, 7), dtype))
    np.testing.assert_array_equal(large, numbers((500, 30, 40), dtype))
