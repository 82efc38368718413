"""Long use: thousands of mixed calls and errors leave memory, file descriptors and threads unchanged."""

from __future__ import annotations

import gc
import sys
import threading
from pathlib import Path

import pytest

import vkrnn
from cases import CASES, gradient_inputs, inputs
from drawn_calls import check, drawn
from resident import opened
from scale import scaled

MEBIBYTE = 1 << 20
CALLS = scaled(10_000, 1_000)
VULKAN_CALLS = scaled(2_000, 300)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def held() -> dict[str, int]:
    """Return the process's resident bytes, open files, and threads of the system and of Python."""
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "bytes": int(status["VmRSS"].split()[0]) * 1024,
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "threads": int(status["Threads"]),
        "Python's threads": threading.active_count(),
    }


def assert_flat(before: dict[str, int], after: dict[str, int], growth: int) -> None:
    """Fail if more is held than before. `growth` bytes are allowed, because allocators keep some memory."""
    assert after["bytes"] - before["bytes"] < growth
    for name in ("files", "threads", "Python's threads"):
        assert after[name] <= before[name], name


def test_thousands_of_calls_on_the_cpu() -> None:
    """Calls of any shapes, options, dtypes and errors. The device keeps freed memory of every size for reuse."""
    with opened("native") as device, device:
        for number in range(CALLS * 3 // 10):
            check(drawn(5, number))
        before, kept_before = held(), device.statistics()["bytes_allocated"]
        for number in range(CALLS * 3 // 10, CALLS):
            check(drawn(5, number))
        kept = int(device.statistics()["bytes_allocated"] - kept_before)
        assert kept < 64 * MEBIBYTE
        assert_flat(before, held(), kept + 16 * MEBIBYTE)


@pytest.mark.parametrize("way", ["mapped", "staged"])
def test_thousands_of_calls_on_a_vulkan_device(way: str) -> None:
    """Options repeat, so that few kernels are compiled; arrays are made and dropped, and some calls fail."""
    cases = [case for case in CASES if not case.tags][::40]

    def use(turns: range) -> None:
        for turn in turns:
            case = cases[turn % len(cases)]
            arrays = {name: vkrnn.asarray(array) for name, array in inputs(case).items()}
            training = case.descriptor(training=True)
            trained = getattr(vkrnn, case.cell)(**arrays, descriptor=training)
            above = {
                name: array if isinstance(array, vkrnn.Array) else vkrnn.asarray(array)
                for name, array in gradient_inputs(case, trained).items()
            }
            getattr(vkrnn, f"{case.cell}_gradients")(**arrays, **above, descriptor=case.descriptor())
            with pytest.raises(ValueError, match="source"):
                getattr(vkrnn, case.cell)(**arrays | {"source": vkrnn.zeros((1, 1, 0))}, descriptor=training)

    with opened(way) as device, device:
        use(range(VULKAN_CALLS * 3 // 10))
        device.synchronize()
        before, statistics = held(), device.statistics()
        use(range(VULKAN_CALLS * 3 // 10, VULKAN_CALLS))
        device.synchronize()
        assert_flat(before, held(), 16 * MEBIBYTE)
        assert device.statistics()["bytes_allocated"] - statistics["bytes_allocated"] < 16 * MEBIBYTE
        assert device.statistics()["pipelines"] == statistics["pipelines"]
