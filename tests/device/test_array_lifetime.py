"""Arrays and running calls when arrays are dropped, calls interrupted, devices closed or lost."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkrnn
from cases import Case, inputs
from polls import polling
from resident import above, assert_same, assert_same_array, dtype_of, numbers, put, sees
from targets import closes_the_default
from vkrnn import SingleGateRNNDescriptor, _core

LINEAR = SingleGateRNNDescriptor(activation="none")
CASE = Case("lstm", 6, 4, 8, 12, {}, frozenset({"input_weight", "bias", "init_state", "init_cell"}))
CLOSED = "the device is closed; open a new vkrnn.Device"
LATE = "the device was lost in an earlier call; open a new vkrnn.Device"


def call(array: vkrnn.Array, **rest: Any) -> vkrnn.Array:
    """Return a result [T, N, H] whose numbers are those of the source."""
    weight = np.zeros((array.shape[-1],) * 2, np.float32)
    result: vkrnn.Array = vkrnn.single_gate_rnn(array, weight, descriptor=LINEAR, **rest).output
    return result


def message_of(function: Callable[..., object], *args: Any, **kwargs: Any) -> str:
    """Return the message of the DeviceError that the function raises."""
    with pytest.raises(vkrnn.DeviceError) as caught:
        function(*args, **kwargs)
    return str(caught.value)


# Training


class Training:
    """Trains a layer on the device, with result arrays that are made once."""

    def __init__(self, device: vkrnn.Device) -> None:
        """Put all arguments and results on the device."""
        arrays: dict[str, Any] = {**inputs(CASE)}
        self.descriptor = CASE.descriptor(training=True)
        self.resident = put(arrays, device)
        forward = vkrnn.lstm(**arrays, descriptor=self.descriptor, device=device)
        self.upstream = above(CASE, forward, dtype_of("float32"))
        gradients = vkrnn.lstm_gradients(**arrays, **self.upstream, descriptor=self.descriptor, device=device)
        self.forward_out = [vkrnn.zeros(array.shape, device=device) for array in forward]
        self.gradients_out = [vkrnn.zeros(array.shape, device=device) for array in gradients]
        self.upstream = put(self.upstream, device)

    def step(self, batch: Any) -> tuple[Any, Any]:
        """Return forward results and gradients for a batch."""
        self.resident["source"].copy_from(batch)
        forward = vkrnn.lstm(**self.resident, descriptor=self.descriptor, out=self.forward_out)
        saved = {"z_state": forward.z_state, "cell_output_fwd": forward.cell_output}
        upstream = self.upstream | saved
        gradients = vkrnn.lstm_gradients(
            **self.resident, **upstream, descriptor=self.descriptor, out=self.gradients_out
        )
        return forward, gradients


def test_a_training_loop_uploads_only_its_batches(own: vkrnn.Device) -> None:
    """Only the batches are uploaded, nothing is downloaded, and no memory is allocated."""
    training = Training(own)
    batches = [inputs(CASE)["source"] * np.float32(1 + step / 8) for step in range(20)]
    training.step(batches[0])
    own.synchronize()
    before = own.statistics()
    for batch in batches:
        training.step(batch)
    own.synchronize()
    after = own.statistics()
    grown = {key: after[key] - before[key] for key in after if not key.startswith("last_")}
    assert grown["bytes_uploaded"] == sum(batch.nbytes for batch in batches)
    for key in ("bytes_downloaded", "bytes_imported", "bytes_allocated", "pipelines", "plans"):
        assert grown[key] == 0, key
    assert grown["calls"] == 40
    # The results are those of training with the batches.
    arrays: dict[str, Any] = {**inputs(CASE), "source": batches[-1]}
    forward, gradients = training.step(batches[-1])
    wanted: Any = vkrnn.lstm(**arrays, descriptor=training.descriptor, device=own)
    assert_same(forward, wanted)
    upstream = above(CASE, wanted, dtype_of("float32"))
    again = vkrnn.lstm_gradients(**arrays, **upstream, descriptor=training.descriptor, device=own)
    assert_same(gradients, again)


def test_memory_of_dropped_results_is_reused(own: vkrnn.Device) -> None:
    """A training loop without `out` does not allocate more and more memory."""
    arrays, upstream = inputs(CASE), None
    resident = put(arrays, own)
    held = []
    for step in range(300):
        forward = vkrnn.lstm(**resident, descriptor=CASE.descriptor(training=True))
        upstream = above(CASE, forward, dtype_of("float32"), own)
        vkrnn.lstm_gradients(**resident, **upstream)
        if step % 50 == 20:
            held.append(own.statistics()["bytes_allocated"])
    assert len(set(held[1:])) == 1


# Dropping


def test_arrays_may_be_dropped_during_a_call(own: vkrnn.Device) -> None:
    """Inputs and results are dropped as soon as the call returns and their memory reused; results stay right."""
    results = []
    for step in range(60):
        wanted = numbers((40, 3, 64), first=step)
        results.append((call(call(vkrnn.asarray(wanted, device=own))), wanted))
        vkrnn.zeros((40, 3, 64), device=own)
        vkrnn.asarray(np.zeros((40, 3, 64), np.float32), device=own)
        if step % 7 == 0:
            results = results[1:]
    for result, wanted in results:
        assert_same_array(result, wanted)


def test_a_device_may_be_dropped_during_a_call(own: vkrnn.Device) -> None:
    """The arrays keep it alive."""
    index = own.index
    device: vkrnn.Device | None = vkrnn.Device(index)
    result = call(vkrnn.asarray(numbers((400, 3, 64)), device=device))
    device = None
    gc.collect()
    assert_same_array(result, numbers((400, 3, 64)))
    assert result.device.index == index
    assert device is None
    result.device.close()


@pytest.mark.parametrize("kind", ["array", "part", "result", "call"])
def test_cycles_of_devices_and_arrays_are_collected(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """The garbage collector finds and breaks a cycle from a device to its array and back."""
    caplog.set_level("WARNING", "vkrnn")  # pytest would keep log records, and so the device
    device = vkrnn.Device("cpu (")
    weight = np.zeros((4, 4), np.float32)
    kept: dict[str, Callable[[vkrnn.Array], object]] = {
        "array": lambda array: array,
        "part": lambda array: array[1:],
        "result": lambda array: vkrnn.single_gate_rnn(array, weight),
        "call": lambda array: _core.check(
            "single_gate_rnn",
            False,  # noqa: FBT003
            None,
            {"source": array, "recurrent_weight": weight},
        ),
    }
    device.cache = kept[kind](vkrnn.zeros((5, 3, 4), device=device))  # type: ignore[attr-defined]
    gc.collect()
    assert device.cache is not None  # type: ignore[attr-defined]
    gone = weakref.ref(device)
    del device
    gc.collect()
    assert gone() is None


def test_a_wait_can_be_interrupted(own_vulkan: vkrnn.Device) -> None:
    """Ctrl-C interrupts `numpy()` while the device works, and a later `numpy()` returns the result."""
    source = vkrnn.asarray(np.ones((2_000, 4, 64), np.float32), device=own_vulkan)
    result = vkrnn.single_gate_rnn(source, vkrnn.zeros((64, 64), device=own_vulkan)).output

    def stop() -> None:
        raise KeyboardInterrupt

    with polling(stop), pytest.raises(KeyboardInterrupt):
        result.numpy()
    assert (result.numpy() == 1).all()


# Closing


def test_errors_of_a_closed_device(own: vkrnn.Device) -> None:
    """Each error has exactly this message. What needs no device still works, and nothing crashes."""
    array: Any = vkrnn.asarray(numbers((5, 3, 64)), device=own)
    result = vkrnn.zeros((5, 3, 64), device=own)
    late = call(array)
    own.close()
    uses: dict[str, Callable[[], object]] = {
        "numpy": late.numpy,
        "wait": late.wait,
        "copy_from": lambda: array.copy_from(numbers((5, 3, 64))),
        "part": array[1:].numpy,
        "asarray of it": lambda: np.asarray(array),
        "array of it": lambda: np.array(array),
        "array method": array.__array__,
        "empty": lambda: vkrnn.empty(3, device=own),
        "zeros": lambda: vkrnn.zeros(3, device=own),
        "asarray": lambda: vkrnn.asarray(numbers((3,)), device=own),
    }
    assert {name: message_of(use) for name, use in uses.items()} == dict.fromkeys(uses, f"[Array] {CLOSED}")
    assert message_of(own.synchronize) == f"[Device] {CLOSED}"
    assert message_of(call, array) == f"[single_gate_rnn] {CLOSED}"
    assert message_of(call, array, name="x", out=result) == f"[single_gate_rnn 'x'] {CLOSED}"
    assert message_of(call, numbers((5, 3, 64)), out=result) == f"[single_gate_rnn] {CLOSED}"
    lstm_weight = np.zeros((64, 16), np.float32)
    assert message_of(vkrnn.lstm, array, lstm_weight) == f"[lstm] {CLOSED}"
    with pytest.raises(BufferError):
        memoryview(array)
    assert (len(array), array[1:].shape, array.nbytes) == (5, (4, 3, 64), 5 * 3 * 64 * 4)
    assert vkrnn.asarray(array) is array
    assert repr(array) == f"<vkrnn.Array [5, 3, 64] float32 on {own.index}: {own.name}>"
    assert array.device.closed


def test_a_closed_device_keeps_the_memory_of_its_arrays(own: vkrnn.Device) -> None:
    """The memory is freed when the arrays are."""
    array = call(vkrnn.asarray(numbers((500, 3, 64)), device=own))
    own.close()
    assert own.statistics()["bytes_allocated"] >= array.nbytes
    del array
    gc.collect()
    assert own.statistics()["bytes_allocated"] == 0


def test_dlpack_of_a_closed_device(own: vkrnn.Device) -> None:
    """It raises a DeviceError if the host maps the memory, else a BufferError."""
    array = vkrnn.zeros(3, device=own)
    visible = array.host_visible
    own.close()
    with pytest.raises(vkrnn.DeviceError if visible else BufferError) as caught:
        np.from_dlpack(array)
    copy = f"[Array] the host cannot map the memory of {own.name}; copy it with numpy()"
    assert str(caught.value) == (f"[Array] {CLOSED}" if visible else copy)


@closes_the_default
def test_arrays_of_a_replaced_default_device() -> None:
    """A closed default device is replaced; its arrays still belong to the closed one."""
    old = vkrnn.default_device()
    array = vkrnn.asarray(numbers((5, 3, 64)))
    old.close()
    assert message_of(call, array) == f"[single_gate_rnn] {CLOSED}"
    new = vkrnn.asarray(numbers((5, 3, 64)))
    assert new.device is vkrnn.default_device() is not old
    assert_same_array(call(new), numbers((5, 3, 64)))
    with pytest.raises(ValueError) as caught:
        vkrnn.single_gate_rnn(new, array[0])
    message = f"expected an array on {new.device!r}, where others are, got one on {old!r}"
    assert str(caught.value) == f"[single_gate_rnn] recurrent_weight: {message}"


# Lost devices, which only Vulkan has


def test_device_loss_names_the_call_that_failed(own_vulkan: vkrnn.Device) -> None:
    """The wait raises, not the call. Neither earlier nor later calls are named."""
    array = vkrnn.asarray(numbers((5, 3, 64)), device=own_vulkan)
    first = call(array, name="first")
    own_vulkan._open().lose_for_test()
    second = call(first, name="second")
    third = call(second, name="third")
    before = own_vulkan.lost
    first.wait()
    if sees(own_vulkan):
        assert_same_array(first, numbers((5, 3, 64)))
    message = message_of(third.wait)
    expected = r"\[single_gate_rnn 'second'\] the device was lost: .+; open a new vkrnn\.Device"
    assert re.fullmatch(expected, message)
    assert (before, own_vulkan.lost) == (False, True)
    for use in (
        third.numpy,
        second.numpy,
        second.wait,
        first.numpy,
        array.numpy,
        own_vulkan.synchronize,
        array[1:].numpy,
    ):
        assert message_of(use) == message
    for array_again in (np.asarray, np.array):
        assert message_of(array_again, third) == message
    assert message_of(call, array) == f"[single_gate_rnn] {LATE}"
    assert message_of(call, array, name="x") == f"[single_gate_rnn 'x'] {LATE}"
    assert message_of(array.copy_from, numbers((5, 3, 64))) == f"[Array] {LATE}"
    assert message_of(vkrnn.empty, 3, device=own_vulkan) == f"[Array] {LATE}"
    assert message_of(vkrnn.zeros, 3, device=own_vulkan) == f"[Array] {LATE}"
    assert message_of(vkrnn.asarray, numbers((3,)), device=own_vulkan) == f"[Array] {LATE}"
    own_vulkan.close()
    assert message_of(third.wait) == f"[Array] {CLOSED}"


@pytest.mark.parametrize("wait", ["numpy", "wait", "synchronize", "call", "asarray"])
def test_first_wait_raises_the_error(own_vulkan: vkrnn.Device, wait: str) -> None:
    """A call on NumPy arrays waits, too, and raises the error of an earlier call."""
    array = vkrnn.asarray(numbers((5, 3, 64)), device=own_vulkan)
    own_vulkan._open().lose_for_test()
    result = call(array, name="it")
    uses: dict[str, Callable[[], object]] = {
        "numpy": result.numpy,
        "wait": result.wait,
        "synchronize": own_vulkan.synchronize,
        "call": lambda: vkrnn.single_gate_rnn(numbers((5, 3, 4)), np.zeros((4, 4), np.float32), device=own_vulkan),
        "asarray": lambda: np.asarray(result),
    }
    expected = r"\[single_gate_rnn 'it'\] the device was lost: .+; open a new vkrnn\.Device"
    assert re.fullmatch(expected, message_of(uses[wait]))
    assert own_vulkan.lost


@pytest.mark.parametrize("kind", ["forward", "training", "gradients"])
def test_device_loss_in_every_kind_of_call(own_vulkan: vkrnn.Device, kind: str) -> None:
    """A call on NumPy arrays raises at once. Its memory is freed, and a new device gives the same bits."""
    arrays: dict[str, Any] = {**inputs(CASE)}
    descriptor = CASE.descriptor(training=kind != "forward")
    function: Callable[..., Any] = vkrnn.lstm
    if kind == "gradients":
        forward = vkrnn.lstm(**arrays, descriptor=descriptor, device="cpu (")
        arrays |= above(CASE, forward, dtype_of("float32"))
        function = vkrnn.lstm_gradients
    # Results are mapped device memory where the host can map it.
    wanted = [array.copy() for array in function(**arrays, descriptor=descriptor, device=own_vulkan)]
    own_vulkan._open().lose_for_test()
    message = message_of(function, **arrays, descriptor=descriptor, device=own_vulkan)
    assert re.fullmatch(rf"\[{function.__name__}\] the device was lost: .+; open a new vkrnn\.Device", message)
    gc.collect()
    own_vulkan.close()
    assert own_vulkan.statistics()["bytes_allocated"] == 0
    new = vkrnn.Device(own_vulkan.index)
    for one, other in zip(function(**arrays, descriptor=descriptor, device=new), wanted, strict=True):
        np.testing.assert_array_equal(one, other)
    new.close()


def test_a_new_device_after_a_lost_one(own_vulkan: vkrnn.Device) -> None:
    """A new device works, and arrays of the lost one may be dropped at any time."""
    array = vkrnn.asarray(numbers((5, 3, 64)), device=own_vulkan)
    own_vulkan._open().lose_for_test()
    results = [call(array) for _ in range(20)]
    message_of(own_vulkan.synchronize)
    new = vkrnn.Device(own_vulkan.index)
    assert_same_array(call(vkrnn.asarray(numbers((5, 3, 64)), device=new)), numbers((5, 3, 64)))
    del array, results
    gc.collect()
    own_vulkan.close()
    assert own_vulkan.statistics()["bytes_allocated"] == 0
    new.close()
