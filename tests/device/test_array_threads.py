"""Arrays and calls from several threads, on one device, on several, and on one that is closed meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

import vkrnn
from cases import CASES, Case, inputs
from resident import VULKAN_WAYS, WAYS, above, assert_same, dtype_of, opened, put
from scale import distinct

THREADS = 8
# Cases of every cell and direction; few have the same sizes.
CHOSEN = [case for case in CASES if not case.tags][3::61]


class Wanted:
    """A case and its results when no other thread runs."""

    def __init__(self, case: Case, dtype: str, device: vkrnn.Device) -> None:
        """Run the case on NumPy arrays."""
        kind = dtype_of(dtype)
        self.case, self.kind = case, kind
        self.arrays: dict[str, Any] = {name: array.astype(kind) for name, array in inputs(case).items()}
        self.forward = self.run(self.arrays, device=device)
        self.upstream = above(case, self.forward, kind)
        self.gradients = self.differentiate(self.arrays, self.upstream, device=device)

    def run(self, arrays: dict[str, Any], **rest: Any) -> Any:
        """Return the results of a training call."""
        return getattr(vkrnn, self.case.cell)(**arrays, descriptor=self.case.descriptor(training=True), **rest)

    def differentiate(self, arrays: dict[str, Any], upstream: dict[str, Any], **rest: Any) -> Any:
        """Return the gradients."""
        function = getattr(vkrnn, f"{self.case.cell}_gradients")
        return function(**arrays, **upstream, descriptor=self.case.descriptor(), **rest)

    def on_numpy_arrays(self, device: vkrnn.Device) -> None:
        """Run the case again and compare the bits."""
        for got, wanted in (
            (self.run(self.arrays, device=device), self.forward),
            (self.differentiate(self.arrays, self.upstream, device=device), self.gradients),
        ):
            for one, other in zip(got, wanted, strict=True):
                assert one.tobytes() == other.tobytes()

    def on_arrays(self, device: vkrnn.Device, resident: dict[str, Any]) -> None:
        """Do the same on device arrays, some of them shared. The first results are dropped during the call."""
        self.run(resident)
        forward = self.run(resident)
        gradients = self.differentiate(resident, above(self.case, forward, self.kind, device))
        mixed = resident | {"source": self.arrays["source"]}
        again = self.run(mixed)
        assert_same(gradients, self.gradients)
        assert_same(forward, self.forward)
        assert_same(again, self.forward)


def together(work: Callable[[int], None], count: int = THREADS) -> None:
    """Run the work in several threads that start together. Raise the first error."""
    barrier = threading.Barrier(count)

    def begin(thread: int) -> None:
        barrier.wait()
        work(thread)

    with ThreadPoolExecutor(count) as pool:
        for future in [pool.submit(begin, thread) for thread in range(count)]:
            future.result()


def everything(device: vkrnn.Device, every: int = 1) -> list[Wanted]:
    """Return every n-th case, with alternating dtypes."""
    dtypes = ("float32", "bfloat16", "float64")
    return [Wanted(case, dtypes[index % len(dtypes)], device) for index, case in list(enumerate(CHOSEN))[::every]]


def test_one_device(own: vkrnn.Device) -> None:
    """Calls of different shapes and dtypes on NumPy and shared device arrays give the same bits."""
    wanted = everything(own)
    shared = [put(each.arrays, own) for each in wanted]

    def work(thread: int) -> None:
        order = np.random.default_rng(thread).permutation(len(wanted))
        for index in order:
            each = wanted[index]
            if (index + thread) % 3 == 0:
                each.on_numpy_arrays(own)
            else:
                each.on_arrays(own, shared[index] if index % 2 else put(each.arrays, own))
            if index % 5 == 0:
                own.synchronize()
                assert own.statistics()["bytes_allocated"] > 0

    together(work)
    assert not own.lost


@pytest.mark.parametrize("ways", [VULKAN_WAYS, ("native", "native"), ("native", "mapped")], ids=" and ".join)
def test_several_devices(ways: tuple[str, str]) -> None:
    """Two threads use each device while another thread opens and closes its own."""
    with opened(ways[0]) as one, opened(ways[1]) as other:
        wanted = {device: everything(device, 2) for device in (one, other)}

        def work(thread: int) -> None:
            if thread == THREADS:
                for each in wanted[one][:4]:
                    mine = vkrnn.Device(one.index)
                    each.on_arrays(mine, put(each.arrays, mine))
                    each.run(put(each.arrays, mine))  # still running when the device closes
                    mine.close()
                return
            device = (one, other)[thread % 2]
            for index in np.random.default_rng(thread).permutation(len(wanted[device])):
                each = wanted[device][index]
                each.on_arrays(device, put(each.arrays, device))

        together(work, THREADS + 1)


@pytest.mark.parametrize("way", distinct(WAYS, 2))
def test_a_device_for_each_thread(way: str) -> None:
    """Eight devices at a time give the bits of another device."""
    with ExitStack() as stack:
        other, *own = (stack.enter_context(opened(way)) for _ in range(1 + THREADS))
        wanted = everything(other, 3)

        def work(thread: int) -> None:
            for each in wanted:
                each.on_arrays(own[thread], put(each.arrays, own[thread]))

        together(work)


def test_closing_a_device_that_other_threads_use(own: vkrnn.Device) -> None:
    """Other threads get right results or the error. Nothing hangs or crashes."""
    each = Wanted(CHOSEN[0], "float32", own)
    messages: list[str] = []
    under_way = threading.Semaphore(0)

    def work(thread: int) -> None:
        if thread == 0:
            for _ in range(3 * (THREADS - 1)):
                under_way.acquire()
            own.close()
            return
        try:
            while True:
                each.on_arrays(own, put(each.arrays, own))
                each.on_numpy_arrays(own)
                under_way.release()
        except vkrnn.DeviceError as error:
            messages.append(str(error))

    together(work)
    assert len(messages) == THREADS - 1
    for message in messages:
        prefix, rest = message.split("] ", 1)
        assert prefix in ("[Array", f"[{each.case.cell}", f"[{each.case.cell}_gradients")
        assert rest == "the device is closed; open a new vkrnn.Device"


def test_views_and_waits_from_other_threads(own: vkrnn.Device) -> None:
    """Threads that read another thread's result see all of it, in any order of waiting."""
    each = Wanted(CHOSEN[1], "float32", own)
    resident = put(each.arrays, own)
    for _ in range(10):
        forward = each.run(resident)

        def work(thread: int, forward: Any = forward) -> None:
            if thread == 0:
                forward[0].wait()
            assert_same(forward, each.forward)

        together(work)
