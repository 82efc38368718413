"""The argument `out`: results are written into the caller's NumPy or device arrays."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import vkrnn
from cases import Case, inputs
from resident import KINDS, above, assert_same, assert_same_array, beside, dtype_of, numbers, opened, put, sees
from vkrnn import SingleGateRNNDescriptor

CASE = Case("lstm", 5, 3, 7, 4, {}, frozenset({"input_weight", "bias"}))
SHAPES = {"output": (5, 3, 4), "cell_output": (5, 3, 4), "z_state": (5, 3, 16)}
LINEAR = SingleGateRNNDescriptor(activation="none")


def lstm(arrays: dict[str, Any], **rest: Any) -> Any:
    """Return the results of a training call."""
    return vkrnn.lstm(**arrays, descriptor=CASE.descriptor(training=True), **rest)


def empties(device: vkrnn.Device | None = None, dtype: str = "float32") -> list[Any]:
    """Return arrays for the results of such a call: NumPy arrays if no device is given."""
    if device is None:
        return [np.full(shape, 7, dtype_of(dtype)) for shape in SHAPES.values()]
    return [vkrnn.asarray(array, device=device) for array in empties(dtype=dtype)]


@pytest.fixture(name="arrays")
def _arrays() -> dict[str, Any]:
    return {**inputs(CASE)}


# What it does


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("kind", [tuple, list])
def test_results_are_the_out_arrays(either: vkrnn.Device, dtype: str, kind: type) -> None:
    """The call fills the arrays in `out` and returns the same objects, forward and backward."""
    arrays: dict[str, Any] = {name: array.astype(dtype_of(dtype)) for name, array in inputs(CASE).items()}
    wanted = lstm(arrays, device=either)
    resident, out = put(arrays, either), empties(either, dtype)
    got = lstm(resident, out=kind(out))
    assert all(result is own for result, own in zip(got, out, strict=True))
    upstream = above(CASE, got, dtype_of(dtype), either)
    gradients = vkrnn.lstm_gradients(**arrays, **above(CASE, wanted, dtype_of(dtype)), device=either)
    room = [vkrnn.zeros(array.shape, dtype, device=either) for array in gradients]
    assert_same(vkrnn.lstm_gradients(**resident, **upstream, out=room), gradients)
    for own, gradient in zip(room, gradients, strict=True):
        assert_same_array(own, gradient)
    assert_same(got, wanted)


@pytest.mark.parametrize("dtype", KINDS)
def test_numpy_out_arrays(either: vkrnn.Device, dtype: str) -> None:
    """Results in NumPy arrays are complete when the call returns, for small and large arrays."""
    arrays: dict[str, Any] = {name: array.astype(dtype_of(dtype)) for name, array in inputs(CASE).items()}
    out = empties(dtype=dtype)
    got = lstm(arrays, out=out, device=either)
    assert all(result is own for result, own in zip(got, out, strict=True))
    for own, result in zip(out, lstm(arrays, device=either), strict=True):
        np.testing.assert_array_equal(own, result)
    large = np.zeros((600, 16, 64), dtype_of(dtype))
    source, weight = numbers(large.shape, dtype), np.zeros((64, 64), dtype_of(dtype))
    (got,) = vkrnn.single_gate_rnn(source, weight, descriptor=LINEAR, out=large, device=either)
    assert got is large
    np.testing.assert_array_equal(large, source)


def test_a_single_result_needs_no_tuple(either: vkrnn.Device) -> None:
    """`out` may be one array, NumPy or device, if the call has one result."""
    source, weight = numbers((5, 3, 4)), np.zeros((4, 4), np.float32)
    for out in (np.empty((5, 3, 4), np.float32), vkrnn.empty((5, 3, 4), device=either)):
        for form in (out, (out,), [out]):
            (got,) = vkrnn.single_gate_rnn(source, weight, descriptor=LINEAR, out=form)
            assert got is out
            np.testing.assert_array_equal(np.asarray(out), source)


def test_none_in_out_makes_a_new_array(either: vkrnn.Device, arrays: dict[str, Any]) -> None:
    """None in place of an array allocates that result; `out=None` allocates all of them."""
    wanted = lstm(arrays, device=either)
    for device, given in ((None, arrays), (either, put(arrays, either))):
        for which in range(3):
            out: list[Any] = [None, None, None]
            out[which] = empties(device)[which]
            got = lstm(given, out=out, device=either)
            assert got[which] is out[which]
            for result, plain in zip(got, wanted, strict=True):
                np.testing.assert_array_equal(np.asarray(result), plain)
                assert isinstance(result, np.ndarray if device is None else vkrnn.Array)


def test_device_array_in_out_selects_the_device(either: vkrnn.Device, arrays: dict[str, Any]) -> None:
    """A device array in `out` moves a call on NumPy arguments to that device, and all results are device arrays."""
    got = lstm(arrays, out=(None, vkrnn.empty((5, 3, 4), device=either), None))
    assert_same(got, lstm(arrays, device=either))
    assert all(result.device is either for result in got)


def test_out_array_can_be_reused(either: vkrnn.Device, arrays: dict[str, Any]) -> None:
    """The same array can serve many calls. No memory is retained, and NumPy views of it show the new values."""
    resident, out = put(arrays, either), empties(either)
    places = [array.numpy().ctypes.data for array in out] if sees(either) else []
    for _ in range(3):  # the third call is recorded to be repeated
        lstm(resident, out=out)
    held = either.statistics()["bytes_allocated"]
    for step in range(20):
        resident["source"].copy_from(arrays["source"] * np.float32(step))
        lstm(resident, out=out)
    assert either.statistics()["bytes_allocated"] == held
    last = lstm(arrays | {"source": arrays["source"] * np.float32(19)}, device=either)
    for own, plain in zip(out, last, strict=True):
        assert_same_array(own, plain)
    if places:
        assert [array.numpy().ctypes.data for array in out] == places


def test_parts_of_one_array(either: vkrnn.Device, arrays: dict[str, Any]) -> None:
    """Results may be disjoint parts of one array."""
    states = vkrnn.zeros((12, 3, 4), device=either)
    got = lstm(put(arrays, either), out=(states[1:6], states[6:11], None))
    wanted = lstm(arrays, device=either)
    assert_same(got, wanted)
    nothing = np.zeros((1, 3, 4), np.float32)
    assert_same_array(states, np.concatenate([nothing, wanted.output, wanted.cell_output, nothing]))


def test_steps_written_into_a_sequence(either: vkrnn.Device) -> None:
    """Each of T calls reads row t - 1 of an array and writes row t."""
    source, weight = numbers((6, 3, 4)), np.full((4, 4), 2.0**-6, np.float32)
    wanted = vkrnn.single_gate_rnn(source, weight, descriptor=LINEAR, device=either).output
    given, rows = vkrnn.asarray(source, device=either), vkrnn.zeros((7, 3, 4), device=either)
    for t in range(6):
        vkrnn.single_gate_rnn(given[t : t + 1], weight, init_state=rows[t], descriptor=LINEAR, out=rows[t + 1 : t + 2])
    assert_same_array(rows[1:], wanted)


# What it refuses

NAMES = "output, cell_output, z_state"
COUNT = f"expected an array or None for each of {NAMES}, got "
READ_ONLY = np.zeros((5, 3, 4), np.float32)
READ_ONLY.flags.writeable = False
WRONG: list[tuple[Any, type[Exception], str]] = [
    (np.zeros((5, 3, 4), np.float32), TypeError, f"{COUNT}1 of them"),
    ((None, None), TypeError, f"{COUNT}2 of them"),
    ([None] * 4, TypeError, f"{COUNT}4 of them"),
    ({}, TypeError, f"{COUNT}dict"),
    ("abc", TypeError, f"{COUNT}str"),
    ((1.0, None, None), TypeError, "output: expected a numpy.ndarray, got float"),
    ((None, [1.0], None), TypeError, "cell_output: expected a numpy.ndarray, got list"),
    ((np.zeros((5, 3, 4)), None, None), TypeError, "output: expected dtype float32, got float64"),
    ((None, None, np.zeros((5, 3, 16), ">f4")), TypeError, "z_state: expected dtype float32, got >f4"),
    ((None, None, np.zeros((5, 3, 4), np.float32)), ValueError, "z_state: expected shape [5, 3, 16], got [5, 3, 4]"),
    ((np.zeros((15, 4), np.float32), None, None), ValueError, "output: expected shape [5, 3, 4], got [15, 4]"),
    (
        (np.zeros((5, 3, 8), np.float32)[:, :, ::2], None, None),
        ValueError,
        "output: expected a C-contiguous, aligned array that can be written to",
    ),
    ((None, READ_ONLY, None), ValueError, "cell_output: expected a C-contiguous, aligned array that can be written to"),
]


@pytest.mark.parametrize(("out", "error", "message"), WRONG, ids=[message for *_, message in WRONG])
def test_errors_about_out(arrays: dict[str, Any], out: Any, error: type[Exception], message: str) -> None:
    """Each error has exactly this message, with the name of the call."""
    for rest, prefix in (({}, "[lstm]"), ({"name": "layer 2"}, "[lstm 'layer 2']")):
        with pytest.raises(error, match=f"^{re.escape(f'{prefix} out: {message}')}$"):
            lstm(arrays, out=out, **rest)


def test_errors_about_device_arrays_in_out(either: vkrnn.Device, arrays: dict[str, Any]) -> None:
    """Wrong kind, dtype, shape or device is reported before the device is used."""
    resident = put(arrays, either)
    own = empties(either)
    with opened("native") as other:
        elsewhere, theirs = vkrnn.zeros((5, 3, 4), device=other), beside(other, either)
        wrong: list[tuple[dict[str, Any], Any, type[Exception], str]] = [
            (
                resident,
                (np.zeros((5, 3, 4), np.float32), None, None),
                TypeError,
                "output: expected a vkrnn.Array, as others are, got ndarray",
            ),
            (
                arrays,
                (own[0], np.zeros((5, 3, 4), np.float32), None),
                TypeError,
                "cell_output: expected a vkrnn.Array, as others are, got ndarray",
            ),
            (
                resident,
                (vkrnn.zeros((5, 3, 4), "float16", device=either), None, None),
                TypeError,
                "output: expected dtype float32, got float16",
            ),
            (resident, (None, None, own[0]), ValueError, "z_state: expected shape [5, 3, 16], got [5, 3, 4]"),
            (
                resident,
                (own[0], elsewhere, None),
                ValueError,
                f"cell_output: expected an array on {either!r}, where others are, got one on {theirs}",
            ),
            (
                arrays,
                (own[0], elsewhere, None),
                ValueError,
                f"cell_output: expected an array on {either!r}, where others are, got one on {theirs}",
            ),
        ]
        before = either.statistics()["calls"], other.statistics()["calls"]
        for given, out, error, message in wrong:
            with pytest.raises(error, match=f"^{re.escape(f'[lstm] out: {message}')}$"):
                lstm(given, out=out)
        assert (either.statistics()["calls"], other.statistics()["calls"]) == before


def test_out_must_not_overlap(either: vkrnn.Device, arrays: dict[str, Any]) -> None:
    """An array in `out` may share no memory with an argument or another result, in part or whole."""
    resident = put(arrays, either)
    whole, first = vkrnn.zeros((9, 3, 4), device=either), vkrnn.zeros((5, 3, 4), device=either)
    plain = np.zeros((9, 3, 4), np.float32)
    source = plain[:5]  # as large as a result here
    cases: list[tuple[dict[str, Any], Any, str]] = [
        (
            resident,
            (first, first, None),
            "cell_output: expected memory of its own, got memory shared with the result output",
        ),
        (
            resident,
            (whole[:5], whole[4:], None),
            "cell_output: expected memory of its own, got memory shared with the result output",
        ),
        (
            arrays,
            (plain[:5], plain[4:], None),
            "cell_output: expected memory of its own, got memory shared with the result output",
        ),
    ]
    for given, out, message in cases:
        with pytest.raises(ValueError, match=f"^{re.escape(f'[lstm] out: {message}')}$"):
            lstm(given, out=out)
    weight = np.zeros((4, 4), np.float32)
    there = vkrnn.asarray(source, device=either)
    for argument in (source, there, there[:]):
        with pytest.raises(ValueError) as caught:
            vkrnn.single_gate_rnn(argument, weight, descriptor=LINEAR, out=argument)
        message = "[single_gate_rnn] out: output: expected memory of its own, got memory shared with source"
        assert str(caught.value) == message


def test_arguments_may_not_be_views_of_out(either: vkrnn.Device) -> None:
    """Overlap is found for every way in which NumPy can view the memory of a device array."""
    if not sees(either):
        pytest.skip("NumPy does not see the device's memory")
    array, weight = vkrnn.asarray(numbers((5, 3, 4)), device=either), np.zeros((4, 4), np.float32)
    plain = array.numpy()
    others = {
        "a part": array[4:].numpy(),
        "backwards": plain[::-1],
        "memoryview": np.asarray(memoryview(array)),
        "frombuffer": np.frombuffer(array, np.float32).reshape(5, 3, 4),
        "dlpack": np.from_dlpack(array),
        "subclass": plain.view(Lying),
    }
    for kind, view in {"numpy": plain, **others}.items():
        with pytest.raises(ValueError) as caught:
            vkrnn.single_gate_rnn(view, weight, out=array if len(view) == 5 else array[4:], descriptor=LINEAR)
        message = "[single_gate_rnn] out: output: expected memory of its own, got memory shared with source"
        assert str(caught.value) == message, kind
    states = vkrnn.zeros((2, 3, 4), device=either)
    vkrnn.single_gate_rnn(states[:1].numpy(), weight, descriptor=LINEAR, out=states[1:])  # disjoint parts


class Lying(np.ndarray[Any, Any]):
    """A non-contiguous array that claims to be contiguous and to share no memory."""

    @property
    def flags(self) -> Any:  # type: ignore[override]
        """Return the flags of a contiguous array."""
        return np.zeros(1).flags

    def __array_function__(self, *_: Any) -> Any:
        """Return False for every NumPy function, so for `shares_memory` too."""
        return False


def test_overlap_with_a_lying_subclass() -> None:
    """Overlap and contiguity are checked from the memory itself, not from what a subclass answers."""
    source, weight = numbers((5, 3, 4)), np.zeros((4, 4), np.float32)
    cases = {
        "expected memory of its own, got memory shared with source": source,
        "expected a C-contiguous, aligned array that can be written to": np.zeros((5, 3, 4), np.float32)[::-1],
    }
    for message, memory in cases.items():
        with pytest.raises(ValueError, match=f"^{re.escape(f'[single_gate_rnn] out: output: {message}')}$"):
            vkrnn.single_gate_rnn(source, weight, out=memory.view(Lying), device="cpu (")
    own = np.zeros((5, 3, 4), np.float32).view(Lying)
    assert vkrnn.single_gate_rnn(source, weight, descriptor=LINEAR, out=own, device="cpu (").output is own
    np.testing.assert_array_equal(np.asarray(own), source)


def test_device_must_be_that_of_out(either: vkrnn.Device, arrays: dict[str, Any]) -> None:
    """`device=` may name no other device than that of the arrays in `out`."""
    other = vkrnn.default_device()
    message = f"[lstm] device: expected {either!r}, where the arrays are, got {beside(other, either)}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        lstm(arrays, out=empties(either), device=other)
