"""Arrays as other libraries see them: `__array__`, the buffer protocol, DLPack; and what outlives what."""

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
    """Return where NumPy's array is."""
    return int(array.__array_interface__["data"][0])


def passed_on(array: vkrnn.Array, **rest: Any) -> vkrnn.Array:
    """Return the array [T, N, H] as it comes out of a call that changes nothing, which may be under way."""
    weight = np.zeros((array.shape[-1],) * 2, array.dtype)
    result: vkrnn.Array = vkrnn.single_gate_rnn(array, weight, descriptor=LINEAR, **rest).output
    return result


# Where the host sees the memory

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
def test_the_memory_is_numpys(mapped: vkrnn.Device, dtype: str, look: str) -> None:
    """Every look is at the same bytes, waits for what writes them, and of a part at the part."""
    if dtype == "bfloat16" and look in ("memoryview", "dlpack"):
        pytest.skip("told below")
    wanted = numbers((5, 3, 7), dtype)
    array = passed_on(vkrnn.asarray(wanted, device=mapped))
    seen = LOOKS[look](array)
    np.testing.assert_array_equal(seen, wanted)
    assert (seen.dtype, seen.shape, seen.flags.c_contiguous) == (wanted.dtype, wanted.shape, True)
    assert place(seen) == place(array.numpy())
    assert place(LOOKS[look](array[1:])) == place(seen) + wanted[0].nbytes
    np.testing.assert_array_equal(LOOKS[look](array[1:][2]), wanted[3])


@pytest.mark.parametrize("dtype", KINDS)
def test_what_is_written_there_goes_into_calls(mapped: vkrnn.Device, dtype: str) -> None:
    """And what calls write shows, once waited for."""
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


def test_memory_that_the_host_was_told_to_have_is_the_hosts(mapped: vkrnn.Device) -> None:
    """What was there before may still be under way when an array is made: looking at it waits for that too."""
    source = vkrnn.asarray(np.ones((2000, 8, 64), np.float32), device=mapped)
    weight = vkrnn.zeros((64, 64), device=mapped)
    for _ in range(3):
        vkrnn.single_gate_rnn(source, weight)  # its result is dropped at once
        view = vkrnn.empty(source.shape, device=mapped).numpy()
        view[...] = 3
        mapped.synchronize()
        assert (view == 3).all()


def test_conversions_copy(mapped: vkrnn.Device) -> None:
    """On request, and where the dtype changes."""
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
    """Format, strides, and writing through it."""
    for dtype, code in (("float32", "f"), ("float64", "d"), ("float16", "e")):
        array: Any = vkrnn.asarray(numbers((5, 3), dtype), device=mapped)
        view: Any = memoryview(array)
        size = np.dtype(dtype).itemsize
        assert (view.format, view.itemsize, view.shape, view.strides) == (code, size, (5, 3), (3 * size, size))
        assert not view.readonly
        if dtype != "float16":  # which memoryview cannot index
            view[4, 2] = 77.0
            assert array.numpy()[4, 2] == 77


def test_bfloat16_is_none_of_the_protocols(mapped: vkrnn.Device) -> None:
    """They do not know it; NumPy's own way does."""
    array: Any = vkrnn.asarray(numbers((5, 3), "bfloat16"), device=mapped)
    with pytest.raises(BufferError) as caught:
        memoryview(array)
    assert str(caught.value.__cause__ or caught.value) == "[Array] buffers know no bfloat16"
    with pytest.raises(BufferError) as caught:
        np.from_dlpack(array)
    assert str(caught.value) == "[Array] NumPy exports no bfloat16 through DLPack"
    np.testing.assert_array_equal(np.asarray(array), numbers((5, 3), "bfloat16"))


def test_torch_takes_it(mapped: vkrnn.Device, torch: Any) -> None:
    """The same memory, both ways."""
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
    """The array, the device object, `close`; and what the array's call wrote is there."""
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
        else:  # what they left behind may be given to others, but not what is looked at
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
    """Stay readable; only new looks are refused."""
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


# Where it does not


@pytest.mark.parametrize("dtype", KINDS)
def test_memory_of_its_own_is_copied(staged: vkrnn.Device, dtype: str) -> None:
    """Every time anew, by NumPy's ways; counted."""
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
def test_memory_of_its_own_is_not_given_away(staged: vkrnn.Device, dtype: str) -> None:
    """Whole messages."""
    array: Any = vkrnn.asarray(numbers((5, 3), dtype), device=staged)
    message = f"[Array] the memory of {staged.name} is not the host's; copy it with numpy()"
    with pytest.raises(BufferError) as caught:
        array.__dlpack__()
    assert str(caught.value) == message
    with pytest.raises(BufferError):
        np.from_dlpack(array)
    with pytest.raises(BufferError) as caught:
        memoryview(array)
    expected = "[Array] buffers know no bfloat16" if dtype == "bfloat16" else message
    assert str(caught.value.__cause__ or caught.value) == expected
    for other in (None, dtype_of(dtype), np.float32, np.float64):
        with pytest.raises(ValueError) as refused:
            array.__array__(other, copy=False)
        assert str(refused.value) == "[Array] copy=False: memory that is not the host's needs a copy"


def test_dlpack_names_the_cpu(either: vkrnn.Device) -> None:
    """Whoever asks where the memory is."""
    assert vkrnn.zeros(3, device=either).__dlpack_device__() == (1, 0)
    assert dtype_of("float32") == vkrnn.zeros(3, device=either).dtype


@pytest.mark.parametrize("dtype", KINDS)
def test_copies_outlive_everything(dtype: str) -> None:
    """As they should."""
    with opened("staged") as device:
        copy = passed_on(vkrnn.asarray(numbers((5, 3, 7), dtype), device=device)).numpy()
        large = passed_on(vkrnn.asarray(numbers((500, 30, 40), dtype), device=device)).numpy()
    del device
    gc.collect()
    np.testing.assert_array_equal(copy, numbers((5, 3, 7), dtype))
    np.testing.assert_array_equal(large, numbers((500, 30, 40), dtype))
