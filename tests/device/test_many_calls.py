"""Many calls, devices, threads and processes give the results of single calls and leave nothing behind."""

from __future__ import annotations

import gc
import multiprocessing
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vkrnn
from cases import CASES, GATES
from resident import assert_same_bits, everything, is_native, opened
from scale import scaled
from vkrnn import GRUDescriptor, LSTMDescriptor, SingleGateRNNDescriptor, SLSTMDescriptor

Array = NDArray[Any]


@pytest.fixture(name="own", params=["native", "mapped"])
def _own(request: pytest.FixtureRequest) -> Iterator[vkrnn.Device]:
    with opened(request.param) as device:
        yield device


MIXED = [*[case for case in CASES if not case.tags][:: len(CASES) // 18], *[c for c in CASES if "wide" in c.tags][::5]]


def test_mixed_calls(own: vkrnn.Device) -> None:
    """After the last round the device holds no more memory, pipelines and plans than after the first."""

    def a_round() -> None:
        for case in MIXED:
            everything(case, own)
        with pytest.raises(ValueError, match="recurrent_weight"):
            vkrnn.lstm(np.ones((5, 3, 8), np.float32), np.ones((8, 3), np.float32), device=own)

    a_round()
    counted = ("bytes_allocated", "pipelines", "plans")
    first = {name: own.statistics()[name] for name in counted}
    assert all(count or (name == "pipelines" and is_native(own)) for name, count in first.items())
    calls = own.statistics()["calls"]
    while own.statistics()["calls"] < calls + scaled(1000, 100):
        a_round()
    assert {name: own.statistics()[name] for name in counted} == first


@pytest.mark.usefixtures("current")
def test_devices_are_opened_and_dropped() -> None:
    """Devices in turn, some of them never closed, do not change the default device's memory."""
    case = MIXED[3]
    wanted = everything(case)
    held = vkrnn.default_device()._open().statistics()["bytes_allocated"]
    for _ in range(5):
        closed, dropped = (vkrnn.Device(vkrnn.default_device().index) for _ in range(2))
        everything(case, closed)
        everything(case, dropped)
        assert closed.statistics()["bytes_allocated"] > 0
        closed.close()
        del dropped
        gc.collect()
    assert vkrnn.default_device().statistics()["bytes_allocated"] == held
    assert_same_bits(everything(case), wanted)


def test_a_lost_device_does_not_affect_others(own_vulkan: vkrnn.Device) -> None:
    """Calls on the lost device raise; other devices, old and new, give the same bits as before."""
    case = MIXED[3]
    with opened("native") as native, opened("mapped") as other:
        wanted = {device: everything(case, device) for device in (native, other)}
        everything(case, own_vulkan)
        own_vulkan._open().lose_for_test()
        for _ in range(2):
            with pytest.raises(vkrnn.DeviceError, match="lost"):
                everything(case, own_vulkan)
            assert own_vulkan.lost
        with opened("mapped") as fresh:
            for device, right in ((native, wanted[native]), (other, wanted[other]), (fresh, wanted[other])):
                assert_same_bits(everything(case, device), right)


def test_four_threads_on_one_device(own: vkrnn.Device) -> None:
    """Simultaneous calls give the bits that each gives alone."""
    wanted = [everything(case, own) for case in MIXED]

    def work(first: int) -> None:
        for i in range(scaled(3, 1) * len(MIXED)):
            at = (first + i * (first + 1)) % len(MIXED)
            assert_same_bits(everything(MIXED[at], own), wanted[at])

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(work, first) for first in range(4)]:
            future.result()


@pytest.mark.usefixtures("current")
def test_the_gil_is_released() -> None:
    """With automatic switching turned off, another thread runs only where the GIL is released.

    It may need more than one call to get a processor.
    """
    source, weight = np.ones((10_000, 1, 1), np.float32), np.full((1, 1), 0.5, np.float32)
    ticks, done, ready = 0, False, threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not done:
            ticks += 1
            ready.set()
            time.sleep(0.001)  # releases the GIL and takes it again

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=tick)
    sys.setswitchinterval(1000)
    try:
        thread.start()
        ready.wait()
        before, calls = ticks, 0
        while ticks == before and calls < 10_000:
            vkrnn.single_gate_rnn(source, weight)
            calls += 1
        made = ticks - before
    finally:
        done = True
        sys.setswitchinterval(interval)
        thread.join()
    assert made > 0


DESCRIPTORS = [
    SingleGateRNNDescriptor(activation="hard_sigmoid", reverse=True),
    LSTMDescriptor(training=True, forget_gate_last=True, cell_gate_activation="relu"),
    GRUDescriptor(bidirectional=True, flip_z=True, reset_after=True),
    SLSTMDescriptor(training=True, forget_gate="exponential"),
]


@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_descriptors_and_results_cross_processes(start: str) -> None:
    """A descriptor can be sent to another process, and the results come back with their names."""
    rng = np.random.default_rng(1)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(start)) as pool:
        for cell, descriptor in zip(GATES, DESCRIPTORS, strict=True):
            gates = GATES[cell] * (2 if descriptor.bidirectional else 1)
            weight = rng.random((*([2] if descriptor.bidirectional else []), 4 * GATES[cell], 4), np.float32)
            arguments = (rng.random((5, 3, 4 * gates), np.float32), weight)
            theirs = pool.submit(getattr(vkrnn, cell), *arguments, descriptor=descriptor).result()
            ours = getattr(vkrnn, cell)(*arguments, descriptor=descriptor)
            assert repr(theirs) == repr(ours)
            assert pool.submit(repr, descriptor).result() == repr(descriptor)
            for name, array in ours._asdict().items():
                np.testing.assert_array_equal(getattr(theirs, name), array)
