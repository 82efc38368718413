"""Calls on device arrays: mixed with NumPy arrays, run without waiting, and which arguments are copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkrnn
from cases import Case, inputs
from resident import (
    KINDS,
    WAYS,
    Array,
    above,
    assert_same,
    assert_same_array,
    beside,
    dtype_of,
    is_native,
    numbers,
    opened,
    put,
    sees,
)
from scale import distinct
from vkrnn import SingleGateRNNDescriptor

CASE = Case("lstm", 5, 3, 7, 4, {}, frozenset({"input_weight", "bias", "init_state", "init_cell", "mask", "peephole"}))
LINEAR = SingleGateRNNDescriptor(activation="none")


def refused(error: type[Exception], message: str, function: Callable[..., object], *args: Any, **kwargs: Any) -> None:
    """Fail unless the call raises exactly this error with exactly this message."""
    with pytest.raises(error) as caught:
        function(*args, **kwargs)
    assert str(caught.value) == message


def lstm(arrays: dict[str, Any], **rest: Any) -> Any:
    """Return the results of a training call."""
    return vkrnn.lstm(**arrays, descriptor=CASE.descriptor(training=True), **rest)


@pytest.fixture(name="arrays")
def _arrays() -> dict[str, Any]:
    return {**inputs(CASE)}


# NumPy's and ours


@pytest.mark.parametrize("dtype", distinct(KINDS, 2))
def test_one_device_array_makes_all_results_device_arrays(either: vkrnn.Device, dtype: str) -> None:
    """Any one argument is enough, forward and backward; values equal those of a call on NumPy arrays, bit for bit."""
    kind = dtype_of(dtype)
    arrays: dict[str, Any] = {name: array.astype(kind) for name, array in inputs(CASE).items()}
    plain = lstm(arrays, device=either)
    upstream = above(CASE, plain, kind)
    gradients = vkrnn.lstm_gradients(**arrays, **upstream, device=either)
    assert all(type(result) is np.ndarray for result in (*plain, *gradients))
    for name, array in arrays.items():
        got = lstm(arrays | put({name: array}, either))
        assert_same(got, plain)
        assert all(result.device is either for result in got)
    for name, array in (arrays | upstream).items():
        assert_same(vkrnn.lstm_gradients(**arrays | upstream | put({name: array}, either)), gradients)


def test_repr_of_results(either: vkrnn.Device, arrays: dict[str, Any]) -> None:
    """The repr of results is the same for device arrays as for NumPy arrays."""
    assert repr(lstm(put(arrays, either))) == repr(lstm(arrays, device=either))


def test_call_runs_on_the_device_of_its_arrays(either: vkrnn.Device, arrays: dict[str, Any]) -> None:
    """The current default device is ignored; `device=` may name the arrays' device, and any other is an error."""
    resident = put(arrays, either)
    other = vkrnn.default_device()
    with other:
        assert lstm(resident).output.device is either
    assert lstm(resident, device=either).output.device is either
    message = f"[lstm 'a'] device: expected {either!r}, where the arrays are, got "
    refused(ValueError, f"{message}{beside(other, either)}", lstm, resident, name="a", device=other)
    named = vkrnn.zeros(0, device=either.index).device  # the device that all calls by this index share
    assert named is not either
    message = f"{message}{either.index}: another {either!r}"
    refused(ValueError, message, lstm, resident, name="a", device=either.index)


@pytest.mark.parametrize("way", WAYS)
def test_arrays_of_different_devices_are_refused(either: vkrnn.Device, way: str, arrays: dict[str, Any]) -> None:
    """The error comes before either device is used, also for two devices of one GPU."""
    with opened(way) as other:
        mixed = put(arrays, either) | put({"bias": arrays["bias"]}, other)
        for device in (either, other):
            device.synchronize()  # the copies count as work of the device when they are done
        before = either.statistics(), other.statistics()
        message = f"bias: expected an array on {either!r}, where others are, got one on {beside(other, either)}"
        refused(ValueError, f"[lstm] {message}", lstm, mixed)
        refused(ValueError, f"[lstm 'two'] {message}", lstm, mixed, name="two")
        assert (either.statistics(), other.statistics()) == before


def test_errors_are_the_same_as_for_numpy_arrays(either: vkrnn.Device, arrays: dict[str, Any]) -> None:
    """Errors about shapes, dtypes and lengths do not depend on the kind of array."""
    resident = put(arrays, either)
    wrong: list[tuple[dict[str, Array], type[Exception]]] = [
        ({"bias": numbers((15,))}, ValueError),
        ({"source": numbers((5, 3))}, ValueError),
        ({"init_state": numbers((4, 4))}, ValueError),
        ({"bias": numbers((16,), "float16")}, TypeError),
        ({"source": numbers((5, 3, 7), "float64")}, TypeError),
    ]
    before = either.statistics()["calls"]
    for change, error in wrong:
        with pytest.raises(error) as plain:
            lstm(arrays | change)
        refused(error, str(plain.value), lstm, resident | put(change, either))
    message = "[lstm] lengths: expected dtype int32 or another integer, got float32"
    refused(TypeError, message, lstm, resident, lengths=vkrnn.zeros(3, device=either))
    message = "[lstm] bias: expected a numpy.ndarray or a vkrnn.Array, got list"
    refused(TypeError, message, lstm, resident | {"bias": [1.0]})
    assert either.statistics()["calls"] == before


def test_plan_and_check_accept_device_arrays(either: vkrnn.Device, arrays: dict[str, Any]) -> None:
    """Both return the same as for NumPy arrays on that device."""
    resident = put(arrays, either)
    assert vkrnn.plan(vkrnn.lstm, **resident) == vkrnn.plan(vkrnn.lstm, **arrays, device=either)
    report = vkrnn.check(vkrnn.lstm, **resident)
    assert report.ok, report
    assert [entry.error for entry in report.comparisons] == [
        entry.error for entry in vkrnn.check(vkrnn.lstm, **arrays, device=either).comparisons
    ]


# Without waiting


def test_long_chains_run_in_order(either: vkrnn.Device) -> None:
    """100 calls, each on the previous result and without waiting, are more than there are command buffers."""
    case = Case("gru", 5, 3, 12, 4, {}, frozenset({"bias", "init_state"}))
    arrays: dict[str, Any] = {**inputs(case)}
    state, resident = arrays["init_state"], put(arrays, either)
    last = resident["init_state"]
    for _ in range(100):
        state = vkrnn.gru(**arrays | {"init_state": state}, device=either).output[-1]
        last = vkrnn.gru(**resident | {"init_state": last}).output[-1]
    assert_same_array(last, state)


def test_training_steps_without_waiting(either: vkrnn.Device, arrays: dict[str, Any]) -> None:
    """Forward and gradient calls in turn; the source of each step is the gradient of the step before."""
    plain: Any = arrays["source"]
    resident = put(arrays, either)
    moved = resident["source"]
    for _ in range(10):
        there, here = lstm(resident | {"source": moved}), lstm(arrays | {"source": plain}, device=either)
        kind = dtype_of("float32")
        moved = vkrnn.lstm_gradients(**resident | {"source": moved}, **above(CASE, there, kind, either)).source
        plain = vkrnn.lstm_gradients(**arrays | {"source": plain}, **above(CASE, here, kind), device=either).source
    assert_same_array(moved, plain)


@pytest.mark.parametrize("size", ["small", "large"])
def test_numpy_arguments_may_change_after_the_call(either: vkrnn.Device, size: str) -> None:
    """A call on device arrays uses the contents at the time of the call, while another call is still running."""
    T, N, H = (5, 3, 4) if size == "small" else (500, 16, 64)
    busy = vkrnn.zeros((2000, 8, 64), device=either), vkrnn.zeros((64, 64), device=either)
    weight = vkrnn.zeros((H, H), device=either)
    memory = np.zeros(T * N * H * 4 + 64, np.uint8)
    for first in (0, 4, -memory.ctypes.data % 64):
        source = memory[first : first + T * N * H * 4].view(np.float32).reshape(T, N, H)
        source[...] = numbers((T, N, H))
        vkrnn.single_gate_rnn(*busy)
        got = vkrnn.single_gate_rnn(source, weight, descriptor=LINEAR).output
        source[...] = 0
        assert_same_array(got, numbers((T, N, H)))


def test_lengths_may_change_after_the_call(either: vkrnn.Device) -> None:
    """`lengths` is a NumPy array in every call, and is read before the call returns."""
    source = vkrnn.asarray(numbers((5, 3, 4)), device=either)
    lengths = np.array([2, 5, 1], np.int32)
    weight = np.zeros((4, 4), np.float32)
    wanted = vkrnn.single_gate_rnn(numbers((5, 3, 4)), weight, lengths=lengths.copy(), device=either)
    got = vkrnn.single_gate_rnn(source, weight, lengths=lengths)
    lengths[:] = 5
    assert_same(got, wanted)


def test_copy_from_is_ordered_with_calls(either: vkrnn.Device) -> None:
    """Earlier calls read the old contents and later calls the new ones, without an explicit wait."""
    source = vkrnn.empty((50, 3, 64), device=either)
    weight = vkrnn.zeros((64, 64), device=either)
    results = []
    for step in range(40):
        source.copy_from(numbers((50, 3, 64), first=step))
        results.append(vkrnn.single_gate_rnn(source, weight, descriptor=LINEAR).output)
    for step, result in enumerate(results):
        assert_same_array(result, numbers((50, 3, 64), first=step))


# What is copied


def test_large_aligned_arguments_are_imported(vulkan: vkrnn.Device) -> None:
    """Vulkan reads aligned NumPy memory in place where it can and copies the rest. The results are bit-identical."""
    T, N, H = 64, 32, 64
    weight = np.full((H, H), 2.0**-10, np.float32)
    memory = np.zeros(T * N * H * 4 + 8192, np.uint8)
    start = -memory.ctypes.data % 4096
    imports = False
    answers = []
    for shift in (0, 64, 4):  # aligned to a page, to 64 bytes, to an element
        first = start + shift
        source = memory[first : first + T * N * H * 4].view(np.float32).reshape(T, N, H)
        source[...] = numbers((T, N, H))
        before = vulkan.statistics()
        answers.append(vkrnn.single_gate_rnn(source, weight, device=vulkan).output)
        after = vulkan.statistics()
        imported, uploaded = (after[key] - before[key] for key in ("bytes_imported", "bytes_uploaded"))
        assert imported + uploaded == source.nbytes + weight.nbytes
        assert imported in (0, source.nbytes)
        assert imported == 0 or (sees(vulkan) and shift != 4)
        imports = imports or bool(imported)
        np.testing.assert_array_equal(source, numbers((T, N, H)))
    if vulkan.driver == "llvmpipe":  # llvmpipe can import host memory
        assert imports == sees(vulkan)
    for answer in answers:
        np.testing.assert_array_equal(answer, answers[0])


def test_device_arrays_are_not_copied(either: vkrnn.Device, arrays: dict[str, Any]) -> None:
    """Calls on device arrays transfer nothing. A NumPy argument is uploaded once, or read in place by the CPU."""
    resident = put(arrays, either)
    keys = ("bytes_uploaded", "bytes_downloaded", "bytes_imported")
    before = [either.statistics()[key] for key in keys]
    last = lstm(resident)
    either.synchronize()
    assert [either.statistics()[key] for key in keys] == before
    lstm(resident | {"bias": arrays["bias"]})
    taken = "bytes_imported" if is_native(either) else "bytes_uploaded"
    assert either.statistics()[taken] == before[keys.index(taken)] + arrays["bias"].nbytes
    last.output.numpy()
    copied = 0 if sees(either) else last.output.nbytes
    assert either.statistics()["bytes_downloaded"] == before[1] + copied


# Repeated calls, whose command buffers Vulkan keeps


@pytest.mark.parametrize("size", [(5, 3, 7, 4), (9, 16, 64, 128)], ids=str)
def test_repeated_calls_are_recorded_once(vulkan: vkrnn.Device, size: tuple[int, int, int, int]) -> None:
    """From the third call on, the recorded commands are reused; they read the current contents of the arrays."""
    T, N, I, H = size
    source, weights = numbers((T, N, I)), {"recurrent_weight": numbers((4 * H, H)) / H}
    weights["input_weight"] = numbers((4 * H, I)) / I
    resident, out = put({"source": source, **weights}, vulkan), vkrnn.empty((T, N, H), device=vulkan)
    before = vulkan.statistics()
    for call in range(7):
        new = source * np.float32(call)
        resident["source"].copy_from(new)
        vkrnn.lstm(**resident, out=out)
        wanted = vkrnn.lstm(new, **weights, device=vulkan).output
        np.testing.assert_array_equal(out.numpy(), wanted)
    # The calls on NumPy arrays may be repeated as well.
    assert 5 <= vulkan.statistics()["repeated"] - before["repeated"] <= 10


def test_repeated_calls_on_numpy_arrays(vulkan: vkrnn.Device) -> None:
    """Where the host can map device memory, a loop of NumPy calls reuses it, so that recorded commands fit again."""
    source, weight = numbers((20, 16, 64)), numbers((64, 64)) / 64
    kept = [vkrnn.single_gate_rnn(source, weight, device=vulkan).output for _ in range(8)]
    before = vulkan.statistics()["repeated"]
    for _ in range(12):
        kept.pop()
        kept.insert(0, vkrnn.single_gate_rnn(source, weight, device=vulkan).output)
        np.testing.assert_array_equal(kept[0], kept[-1])
    assert (vulkan.statistics()["repeated"] - before > 0) == sees(vulkan)
