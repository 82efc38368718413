"""The argument `out`: results into memory of the caller's, NumPy's or a device's."""

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
    """Return arrays for the results of such a call, NumPy's if on no device."""
    if device is None:
        return [np.full(shape, 7, dtype_of(dtype)) for shape in SHAPES.values()]
    return [vkrnn.asarray(array, device=device) for array in empties(dtype=dtype)]


@pytest.fixture(name="arrays")
def _arrays() -> dict[str, Any]:
    return {**inputs(CASE)}


# What it does


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("kind", [tuple, list])
def test_results_are_written_there(either: vkrnn.Device, dtype: str, kind: type) -> None:
    """And are those very arrays; forward and gradients, which read some of them."""
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
def test_numpys_memory(either: vkrnn.Device, dtype: str) -> None:
    """Results of a call on NumPy arrays are there when it returns; large ones too."""
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
    """An array will do, of either kind."""
    source, weight = numbers((5, 3, 4)), np.zeros((4, 4), np.float32)
    for out in (np.empty((5, 3, 4), np.float32), vkrnn.empty((5, 3, 4), device=either)):
        for form in (out, (out,), [out]):
            (got,) = vkrnn.single_gate_rnn(source, weight, descriptor=LINEAR, out=form)
            assert got is out
            np.testing.assert_array_equal(np.asarray(out), source)


def test_none_makes_a_new_one(either: vkrnn.Device, arrays: dict[str, Any]) -> None:
    """For each result by itself; no `out` is all of them."""
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


def test_an_array_in_out_makes_the_call_its_devices(either: vkrnn.Device, arrays: dict[str, Any]) -> None:
    """All arguments may be NumPy's; then all results are arrays."""
    got = lstm(arrays, out=(None, vkrnn.empty((5, 3, 4), device=either), None))
    assert_same(got, lstm(arrays, device=either))
    assert all(result.device is either for result in got)


def test_memory_is_used_again(either: vkrnn.Device, arrays: dict[str, Any]) -> None:
    """The array's, every time; no more is held after many calls, and views show what is new."""
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
    """Which do not overlap: the states of two calls side by side."""
    states = vkrnn.zeros((12, 3, 4), device=either)
    got = lstm(put(arrays, either), out=(states[1:6], states[6:11], None))
    wanted = lstm(arrays, device=either)
    assert_same(got, wanted)
    nothing = np.zeros((1, 3, 4), np.float32)
    assert_same_array(states, np.concatenate([nothing, wanted.output, wanted.cell_output, nothing]))


def test_steps_written_into_a_sequence(either: vkrnn.Device) -> None:
    """A loop of calls of one step, each reading the row before that it does not write."""
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
def test_messages(arrays: dict[str, Any], out: Any, error: type[Exception], message: str) -> None:
    """Whole, under the call's name."""
    for rest, prefix in (({}, "[lstm]"), ({"name": "layer 2"}, "[lstm 'layer 2']")):
        with pytest.raises(error, match=f"^{re.escape(f'{prefix} out: {message}')}$"):
            lstm(arrays, out=out, **rest)


def test_messages_about_arrays(either: vkrnn.Device, arrays: dict[str, Any]) -> None:
    """Kind, dtype, shape, device; before the device is touched."""
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


def test_memory_that_others_have(either: vkrnn.Device, arrays: dict[str, Any]) -> None:
    """Neither an argument's nor another result's, in part or whole."""
    resident = put(arrays, either)
    whole, first = vkrnn.zeros((9, 3, 4), device=either), vkrnn.zeros((5, 3, 4), device=either)
    plain = np.zeros((9, 3, 4), np.float32)
    source = plain[:5]  # as large as a result here
    cases: list[tuple[dict[str, Any], Any, str]] = [
        (resident, (first, first, None), "cell_output: expected memory of its own, got some of the result output's"),
        (
            resident,
            (whole[:5], whole[4:], None),
            "cell_output: expected memory of its own, got some of the result output's",
        ),
        (
            arrays,
            (plain[:5], plain[4:], None),
            "cell_output: expected memory of its own, got some of the result output's",
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
        message = "[single_gate_rnn] out: output: expected memory of its own, got some of source's"
        assert str(caught.value) == message


def test_a_view_of_the_result_is_no_argument(either: vkrnn.Device) -> None:
    """However NumPy came to see the memory, and whatever part of it."""
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
        message = "[single_gate_rnn] out: output: expected memory of its own, got some of source's"
        assert str(caught.value) == message, kind
    states = vkrnn.zeros((2, 3, 4), device=either)
    vkrnn.single_gate_rnn(states[:1].numpy(), weight, descriptor=LINEAR, out=states[1:])  # beside each other


class Lying(np.ndarray[Any, Any]):
    """An array that claims to be C-contiguous, and to share no memory."""

    @property
    def flags(self) -> Any:  # type: ignore[override]
        """Return another array's."""
        return np.zeros(1).flags

    def __array_function__(self, *_: Any) -> Any:
        """Answer all questions with no."""
        return False


def test_what_a_subclass_claims_is_not_believed() -> None:
    """The memory is looked at, not the answers."""
    source, weight = numbers((5, 3, 4)), np.zeros((4, 4), np.float32)
    cases = {
        "expected memory of its own, got some of source's": source,
        "expected a C-contiguous, aligned array that can be written to": np.zeros((5, 3, 4), np.float32)[::-1],
    }
    for message, memory in cases.items():
        with pytest.raises(ValueError, match=f"^{re.escape(f'[single_gate_rnn] out: output: {message}')}$"):
            vkrnn.single_gate_rnn(source, weight, out=memory.view(Lying), device="cpu (")
    own = np.zeros((5, 3, 4), np.float32).view(Lying)
    assert vkrnn.single_gate_rnn(source, weight, descriptor=LINEAR, out=own, device="cpu (").output is own
    np.testing.assert_array_equal(np.asarray(own), source)


def test_the_device_of_out(either: vkrnn.Device, arrays: dict[str, Any]) -> None:
    """Is the call's: another may not be named."""
    other = vkrnn.default_device()
    message = f"[lstm] device: expected {either!r}, where the arrays are, got {beside(other, either)}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        lstm(arrays, out=empties(either), device=other)
