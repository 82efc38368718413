"""Arrays on a device: creation, filling, reading, slicing, repr, errors."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkrnn
from resident import KINDS, assert_same_array, beside, dtype_of, numbers, sees, shown_devices

SHAPES: list[tuple[int, ...]] = [(), (1,), (7,), (0,), (3, 0, 2), (5, 3, 4), (3, 5, 7), (1, 1, 1), (2, 3, 1, 5)]
ANY = "float32, float64, float16 or bfloat16"


def refused(error: type[Exception], message: str, function: Callable[..., object], *args: Any, **kwargs: Any) -> None:
    """Fail unless the call raises exactly this error with exactly this message."""
    with pytest.raises(error) as caught:
        function(*args, **kwargs)
    assert str(caught.value) == message


# Creation


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_round_trip(either: vkrnn.Device, shape: tuple[int, ...], dtype: str) -> None:
    """Every dtype and rank survives an upload and a download; attributes are those of NumPy."""
    source = numbers(shape, dtype)
    array = vkrnn.asarray(source, device=either)
    assert (array.shape, array.dtype, array.device) == (shape, source.dtype, either)
    assert (array.nbytes, array.ndim, array.size) == (source.nbytes, source.ndim, source.size)
    assert repr(array) == f"<vkrnn.Array {list(shape)} {dtype} on {either.index}: {either.name}>"
    assert_same_array(array, source)


def test_host_visible(either: vkrnn.Device) -> None:
    """`host_visible` tells whether `numpy()` needs a download. It is possible only on devices with unified memory."""
    staged = either.statistics()["bytes_downloaded"]
    array = vkrnn.zeros(3, device=either)
    assert array.host_visible in ({True, False} if either.profile.unified_memory else {False})
    array.numpy()
    copied = either.statistics()["bytes_downloaded"] - staged
    assert copied == (0 if array.host_visible else 12)


@pytest.mark.parametrize("dtype", ["float64", ">f8", ">f4", ">f2"])
def test_asarray_accepts_any_layout(either: vkrnn.Device, dtype: str) -> None:
    """Strided, byte-swapped, read-only and unaligned sources give a contiguous native array."""
    plain = numbers((5, 3, 4)).astype(dtype)
    apart = np.repeat(plain, 2, axis=2)[:, :, ::2]
    read_only = plain.copy()
    read_only.flags.writeable = False
    shifted = np.frombuffer(b"x" + plain.tobytes(), np.uint8)[1:].view(plain.dtype).reshape(plain.shape)
    wanted = plain.astype(plain.dtype.newbyteorder("="))
    for source in (plain, apart, np.asfortranarray(plain), plain[::-1][::-1], read_only, shifted):
        assert_same_array(vkrnn.asarray(source, device=either), wanted)


def test_asarray_of_a_device_array(either: vkrnn.Device) -> None:
    """`asarray` returns the array itself on its own device and refuses any other device."""
    array = vkrnn.zeros((5, 3), device=either)
    assert vkrnn.asarray(array) is array
    assert vkrnn.asarray(array, device=either) is array
    other = vkrnn.default_device()
    message = f"[asarray] device: expected {either!r}, where the array is, got "
    refused(ValueError, f"{message}{beside(other, either)}", vkrnn.asarray, array, device=other)
    message = f"{message}{either.index}: another {either!r}"  # the device that all calls by this index share
    refused(ValueError, message, vkrnn.asarray, array, device=either.index)


def test_device_of_new_arrays(own: vkrnn.Device) -> None:
    """Arrays are made on the device that was named, else on the current one."""
    usual = vkrnn.default_device()
    made: list[Callable[..., vkrnn.Array]] = [vkrnn.empty, vkrnn.zeros]
    made += [lambda length, **rest: vkrnn.asarray(numbers((length,)), **rest)]
    for make in made:
        assert make(3).device is usual
        assert make(3, device=own).device is own
        assert make(3, device=usual.name).device.name == usual.name
        with own:
            assert make(3).device is own


@pytest.mark.parametrize("make", [vkrnn.empty, vkrnn.zeros])
def test_shapes_and_dtypes(make: Callable[..., vkrnn.Array], either: vkrnn.Device) -> None:
    """A shape is an integer or a sequence of them; a dtype has any of NumPy's names and defaults to float32."""
    shapes: list[tuple[Any, tuple[int, ...]]] = [
        (3, (3,)),
        (np.int64(3), (3,)),
        ((), ()),
        ([5, np.int8(3)], (5, 3)),
    ]
    for given, shape in shapes:
        array = make(given, device=either)
        assert (array.shape, array.dtype, array.numpy().shape) == (shape, np.dtype(np.float32), shape)
    for dtype in ("float16", np.float16, np.dtype("e"), ">f2"):
        assert make(3, dtype, device=either).dtype == np.dtype(np.float16)
        assert make(3, dtype, device=either).dtype.isnative


@pytest.mark.parametrize("dtype", KINDS)
def test_zeros_in_reused_memory(either: vkrnn.Device, dtype: str) -> None:
    """`zeros` clears memory that the pool has given out before."""
    for shape in ((7,), (333, 3), (100_003,)):
        vkrnn.asarray(numbers(shape, dtype), device=either)  # dropped at once
        assert_same_array(vkrnn.zeros(shape, dtype, device=either), np.zeros(shape, dtype_of(dtype)))


WRONG: list[tuple[Callable[..., object], tuple[Any, ...], type[Exception], str]] = [
    (vkrnn.asarray, ([1.0],), TypeError, "[asarray] array: expected a numpy.ndarray, got list"),
    (vkrnn.asarray, (None,), TypeError, "[asarray] array: expected a numpy.ndarray, got NoneType"),
    (vkrnn.asarray, (np.float32(1),), TypeError, "[asarray] array: expected a numpy.ndarray, got float32"),
    (vkrnn.asarray, (np.zeros(3, np.int32),), TypeError, f"[asarray] dtype: expected {ANY}, got int32"),
    (vkrnn.asarray, (np.zeros(3, bool),), TypeError, f"[asarray] dtype: expected {ANY}, got bool"),
    (vkrnn.empty, (3, "int64"), TypeError, f"[empty] dtype: expected {ANY}, got int64"),
    (vkrnn.zeros, (3, "complex64"), TypeError, f"[zeros] dtype: expected {ANY}, got complex64"),
    (vkrnn.empty, ((3, -1),), ValueError, "[empty] shape: expected axes of at least 0, got [3, -1]"),
    (vkrnn.zeros, (3, "f5"), TypeError, f"[zeros] dtype: expected {ANY}, got 'f5'"),
    (vkrnn.zeros, (3, 5.0), TypeError, f"[zeros] dtype: expected {ANY}, got 5.0"),
    (vkrnn.zeros, (-2,), ValueError, "[zeros] shape: expected axes of at least 0, got [-2]"),
    (vkrnn.zeros, (1.5,), TypeError, "[zeros] shape: expected an int or a sequence of ints, got 1.5"),
    (vkrnn.empty, ([[1]],), TypeError, "[empty] shape: expected an int or a sequence of ints, got [[1]]"),
]


@pytest.mark.parametrize(("make", "args", "error", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_creation_errors(
    make: Callable[..., object], args: tuple[Any, ...], error: type[Exception], message: str
) -> None:
    """Each error has exactly this message."""
    refused(error, message, make, *args)


@pytest.mark.parametrize("user", ["asarray", "empty", "zeros"])
def test_errors_about_the_device(user: str) -> None:
    """The message is that of a call, with the function's name."""
    argument: Any = numbers((3,)) if user == "asarray" else 3
    message = f"[{user}] device: expected a part of a device's name, got 'abacus' {shown_devices()}"
    refused(ValueError, message, getattr(vkrnn, user), argument, device="abacus")
    message = f"[{user}] device: expected a vkrnn.Device, an int or a str, got float"
    refused(TypeError, message, getattr(vkrnn, user), argument, device=0.5)


@pytest.mark.parametrize("make", [vkrnn.empty, vkrnn.zeros])
def test_axes_must_be_integers(make: Callable[..., object]) -> None:
    """Other axes are a TypeError."""
    for shape in (2.5, (3, 2.5), "ab", None):
        with pytest.raises(TypeError):
            make(shape)


@pytest.mark.parametrize("make", [vkrnn.empty, vkrnn.zeros])
def test_too_large_for_the_device(make: Callable[..., object], either: vkrnn.Device) -> None:
    """The MemoryError names the bytes needed and available, and nothing stays allocated."""
    before = either.statistics()["bytes_allocated"]
    with pytest.raises(MemoryError) as caught:
        make((2**20, 2**30), device=either)
    size = r"[0-9.]+ [KMGTP]iB \([0-9,]+ bytes\)"
    asked = re.escape("[Array] the array needs 4.0 PiB (4,503,599,627,370,496 bytes), ")
    assert re.fullmatch(rf"{asked}{size} are available on {re.escape(either.name)}", str(caught.value))
    assert either.statistics()["bytes_allocated"] == before


@pytest.mark.parametrize("shape", [(2**32, 2**32), (2**62, 4), (2**63 - 1, 2**63 - 1), (2**61 + 1, 8)], ids=str)
def test_sizes_that_overflow(shape: tuple[int, ...], either: vkrnn.Device) -> None:
    """A size that overflows 64 bits is an error and does not wrap to a small one."""
    with pytest.raises((MemoryError, ValueError), match=r"^\[(Array|empty)\] "):
        vkrnn.empty(shape, device=either)


def test_axes_beyond_63_bits(either: vkrnn.Device) -> None:
    """The message names the shape. With an axis of 0, any other axes make an array of no bytes."""
    with pytest.raises(ValueError, match=rf"^\[empty\] shape: expected axes below 2\*\*63, got \[{2**64}\]$"):
        vkrnn.empty(2**64, device=either)
    assert vkrnn.empty((2**62, 2**62, 0), device=either).nbytes == 0


# copy_from


@pytest.mark.parametrize("dtype", KINDS)
def test_copy_from(either: vkrnn.Device, dtype: str) -> None:
    """The source may have any layout and may change as soon as the method returns."""
    array = vkrnn.empty((5, 3, 7), dtype_of(dtype), device=either)
    uploaded = either.statistics()["bytes_uploaded"]
    source = numbers((5, 3, 7), dtype)
    wanted = source.copy()
    array.copy_from(source)
    source[:] = 0
    assert_same_array(array, wanted)
    assert either.statistics()["bytes_uploaded"] == uploaded + wanted.nbytes
    array.copy_from(wanted[::-1])
    assert_same_array(array, wanted[::-1].copy())
    if dtype != "bfloat16":  # bfloat16 has no other byte order
        array.copy_from(wanted.astype(wanted.dtype.newbyteorder(">")))
        assert_same_array(array, wanted)


@pytest.mark.parametrize("dtype", KINDS)
def test_copy_from_into_a_part(either: vkrnn.Device, dtype: str) -> None:
    """Elements beside the part stay unchanged, also where a part of 16-bit elements begins or ends within a word."""
    for rows, width in ((7, 1), (5, 3), (5, 4)):
        wanted = numbers((rows, width), dtype)
        array = vkrnn.asarray(wanted, device=either)
        for first, end in ((1, 4), (0, 1), (3, rows), (2, 2)):
            part = numbers((end - first, width), dtype, first=50 + first)
            array[first:end].copy_from(part)
            wanted[first:end] = part
            assert_same_array(array, wanted)


def test_copy_from_its_own_memory(either: vkrnn.Device) -> None:
    """Copying between overlapping parts gives what NumPy gives."""
    for count in (10, 100_000, 1_000_003):
        wanted = numbers((count,))
        for target, source in ((slice(1, None), slice(None, -1)), (slice(None, -3), slice(3, None))):
            array = vkrnn.asarray(wanted, device=either)
            array[target].copy_from(array.numpy()[source])
            shifted = wanted.copy()
            shifted[target] = wanted[source]
            assert_same_array(array, shifted)


def test_errors_of_copy_from(either: vkrnn.Device) -> None:
    """Each error has exactly this message, and the array stays unchanged."""
    array = vkrnn.zeros((5, 3), device=either)
    wrong: list[tuple[Any, type[Exception], str]] = [
        ([[1.0]], TypeError, "source: expected a numpy.ndarray, got list"),
        (array, TypeError, "source: expected a numpy.ndarray, got Array"),
        (np.ones((5, 3)), TypeError, "source: expected dtype float32, got float64"),
        (np.ones((5, 3), np.int32), TypeError, "source: expected dtype float32, got int32"),
        (np.ones((3, 5), np.float32), ValueError, "source: expected shape [5, 3], got [3, 5]"),
        (np.ones((1, 3), np.float32), ValueError, "source: expected shape [5, 3], got [1, 3]"),
        (np.ones((), np.float32), ValueError, "source: expected shape [5, 3], got []"),
    ]
    for source, error, message in wrong:
        refused(error, f"[Array.copy_from] {message}", array.copy_from, source)
    assert_same_array(array, np.zeros((5, 3), np.float32))


# Slicing


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("shape", [(7,), (5, 3), (5, 3, 4), (3, 0, 2)], ids=str)
def test_parts(either: vkrnn.Device, shape: tuple[int, ...], dtype: str) -> None:
    """Indices and slices mean what they mean in NumPy, can be nested, and copy nothing."""
    wanted = numbers(shape, dtype)
    array = vkrnn.asarray(wanted, device=either)
    before = either.statistics()
    length = shape[0]
    slices = [slice(None), slice(1, None), slice(-2, None), slice(1, -1), slice(2, 1), slice(9, 12), slice(-9, 2)]
    parts = [(array[index], wanted[index]) for index in slices]
    parts += [(array[index], wanted[index : index + 1].reshape(shape[1:])) for index in range(length)]
    parts += [(array[np.int64(-1)], wanted[length - 1 : length].reshape(shape[1:]))]
    parts += [(array[1:][1:][0], wanted[2:3].reshape(shape[1:])), (array[1:][:1][-1:], wanted[1:2])]
    after = either.statistics()
    assert {name: after[name] for name in after} == before
    for part, piece in parts:
        assert part.device is either
        assert part.host_visible == array.host_visible
        assert_same_array(part, piece)


@pytest.mark.parametrize("dtype", KINDS)
def test_parts_share_memory(either: vkrnn.Device, dtype: str) -> None:
    """A part shares memory with its array and other parts, and keeps it alive."""
    array = vkrnn.zeros((5, 3), dtype_of(dtype), device=either)
    array[2].copy_from(numbers((3,), dtype))
    wanted = np.zeros((5, 3), dtype_of(dtype))
    wanted[2] = numbers((3,), dtype)
    assert_same_array(array, wanted)
    assert_same_array(array[1:4][1], wanted[2])
    part = array[2:]
    del array
    other = vkrnn.asarray(numbers((5, 3), dtype), device=either)  # would reuse the memory if it were free
    assert_same_array(part, wanted[2:])
    assert_same_array(other, numbers((5, 3), dtype))


def test_length_and_iteration(either: vkrnn.Device) -> None:
    """`len` and `iter` go along the first axis."""
    wanted = numbers((5, 3))
    array = vkrnn.asarray(wanted, device=either)
    assert len(array) == 5
    for part, row in zip(array, wanted, strict=True):
        assert_same_array(part, row)
    assert [float(part.numpy()) for part in array[0]] == wanted[0].tolist()
    assert list(vkrnn.empty((0, 3), device=either)) == []
    scalar = vkrnn.empty((), device=either)
    refused(TypeError, "[Array] len: expected an array with at least one axis, got shape []", len, scalar)
    refused(TypeError, "[Array] len: expected an array with at least one axis, got shape []", iter, scalar)


def test_errors_of_indexing(either: vkrnn.Device) -> None:
    """Each error has exactly this message."""
    array = vkrnn.zeros((5, 3), device=either)
    wrong: list[tuple[Any, type[Exception], str]] = [
        (5, IndexError, "index: expected -5 to 4, got 5"),
        (-6, IndexError, "index: expected -5 to 4, got -6"),
        (
            slice(None, None, 2),
            IndexError,
            "index: expected a slice with step 1, got step 2; others are not contiguous",
        ),
        (
            slice(None, None, -1),
            IndexError,
            "index: expected a slice with step 1, got step -1; others are not contiguous",
        ),
        ((1, 2), TypeError, "index: expected an int or a slice along the first axis, got tuple"),
        (1.0, TypeError, "index: expected an int or a slice along the first axis, got float"),
        (None, TypeError, "index: expected an int or a slice along the first axis, got NoneType"),
        (..., TypeError, "index: expected an int or a slice along the first axis, got ellipsis"),
    ]
    for index, error, message in wrong:
        refused(error, f"[Array] {message}", array.__getitem__, index)
    refused(IndexError, "[Array] index: expected 0 to -1, got 0", vkrnn.empty((0, 2), device=either).__getitem__, 0)
    scalar = vkrnn.zeros((), device=either)
    for index in (0, slice(None), ()):
        refused(
            IndexError,
            "[Array] index: expected an array with at least one axis, got shape []",
            scalar.__getitem__,
            index,
        )


def test_arrays_cannot_be_pickled(either: vkrnn.Device) -> None:
    """An array belongs to a device, which exists in one process only."""
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(vkrnn.zeros(3, device=either))


def test_constructor_is_checked(either: vkrnn.Device) -> None:
    """`vkrnn.Array` makes only parts within another array, so that no foreign memory can be read."""
    base = vkrnn.empty((4, 4), device=either)
    for offset, shape in ((2**64 - 64, [16]), (4, [16]), (0, [17]), (65, [0]), (2**63, [2**61])):
        message = f"expected a part of the array's 64 bytes, got {4 * shape[0]} bytes at offset {offset}"
        with pytest.raises(ValueError, match=rf"^\[Array\] offset: {message}$"):
            vkrnn.Array(base, offset, shape)
    with pytest.raises(ValueError, match=r"^\[Array\] shape: expected axes of at least 0, got -1$"):
        vkrnn.Array(base, 0, [-1, 4])
    assert vkrnn.Array(base, 64, [0]).shape == (0,)
    with pytest.raises(TypeError, match=r"^\[Array\] device: expected an open device, got None$"):
        vkrnn.Array(None, None, base.dtype, [3])  # type: ignore[arg-type]
    for make in (vkrnn.Array, lambda: vkrnn.Array.__new__(vkrnn.Array), lambda: copy.copy(base)):
        with pytest.raises(TypeError):
            make()


def test_wait_without_work(either: vkrnn.Device) -> None:
    """`wait` and `synchronize` return at once when nothing is running."""
    array = vkrnn.asarray(numbers((3,)), device=either)
    array.wait()
    either.synchronize()
    assert_same_array(array, numbers((3,)))


def test_host_visible_is_the_same_for_all_sizes(either: vkrnn.Device) -> None:
    """Arrays of all sizes on a device are mapped, or none is."""
    assert {vkrnn.empty(shape, device=either).host_visible for shape in (0, 1, 100_000)} == {sees(either)}
