"""Devices: how they are listed, selected, opened, closed, lost and replaced."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import vkrnn
from resident import is_native, opened, position, sees, shown_devices
from scale import HANGS_AFTER
from targets import closes_the_default

SOURCE = np.ones((5, 3, 4), np.float32)
WEIGHT = np.full((4, 4), 0.125, np.float32)


def run(device: Any = None) -> Any:
    """Make a small call."""
    return vkrnn.single_gate_rnn(SOURCE, WEIGHT, device=device).output


@pytest.fixture(name="own", params=["native", "mapped"])
def _own(request: pytest.FixtureRequest) -> Iterator[vkrnn.Device]:
    with opened(request.param) as device:
        yield device


@pytest.fixture(name="vulkan")
def _vulkan() -> Iterator[vkrnn.Device]:
    with opened("mapped") as device:
        yield device


def test_devices_are_listed() -> None:
    """Each device has its index and a description."""
    listed = vkrnn.devices()
    assert [device.index for device in listed] == list(range(len(listed)))
    for device in listed:
        assert re.fullmatch(rf"<vkrnn\.Device {device.index}: .+, (cpu|\w+_gpu|other), .+>", repr(device))
        assert device.name in repr(device)
        assert device.memory_bytes > 0
        assert device.type in ("discrete_gpu", "integrated_gpu", "virtual_gpu", "cpu", "other")


def test_the_order_of_devices() -> None:
    """GPUs come first, then the native CPU device, then Vulkan on the CPU."""

    def rank(device: vkrnn.Device) -> int:
        return 1 if is_native(device) else 2 if device.type == "cpu" else 0

    ranks = [rank(device) for device in vkrnn.devices()]
    assert ranks == sorted(ranks)
    assert ranks.count(1) == 1


def test_device_by_position_and_name() -> None:
    """An index, in digits too, or any part of the name, in any case, selects a device."""
    for index in range(len(vkrnn.devices())):
        assert vkrnn.Device(str(index)).index == index
    best = vkrnn.devices()[0]
    assert vkrnn.Device().index == 0
    assert vkrnn.Device(0).name == best.name
    assert vkrnn.Device(best.name[:4].upper()).index == 0


def test_unknown_device() -> None:
    """The message lists the existing devices."""
    last = len(vkrnn.devices()) - 1
    with pytest.raises(ValueError) as caught:
        vkrnn.Device(99)
    assert str(caught.value) == f"[Device] selector: expected an index from 0 to {last}, got 99 {shown_devices()}"
    message = f"expected a part of a device's name, got 'abacus' {shown_devices()}"
    with pytest.raises(ValueError) as caught:
        vkrnn.Device("abacus")
    assert str(caught.value) == f"[Device] selector: {message}"
    with pytest.raises(ValueError, match="expected a part of a device's name, got ''"):
        vkrnn.Device("")
    with pytest.raises(ValueError) as caught:
        run(device="abacus")
    assert str(caught.value) == f"[single_gate_rnn] device: {message}"


def test_wrong_types() -> None:
    """Selectors must be ints or strings, and options have types, too."""
    with pytest.raises(TypeError, match=r"^\[Device\] selector: expected an int or a str, got float$"):
        vkrnn.Device(0.5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^\[Device\] selector: expected an int or a str, got bool$"):
        vkrnn.Device(True)  # noqa: FBT003
    with pytest.raises(TypeError, match=r"^\[Device\] wavefront: expected an int of at least 0, got str$"):
        vkrnn.Device(wavefront="two")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^\[Device\] gemm: expected a str, got int$"):
        vkrnn.Device(gemm=2)  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match=r"^\[Device\] tile: unknown option; the options are float32, schedule, gemm, wavefront"
    ):
        vkrnn.Device(tile=2)
    with pytest.raises(TypeError, match=r"^\[Device\] shedule: unknown option; the options are float32, schedule, "):
        vkrnn.Device(shedule="native")
    with pytest.raises(
        TypeError, match=r"^\[Device\] \\ud800: unknown option; the options are float32, schedule, gemm, wavefront"
    ):
        vkrnn.Device(**{"\ud800": 2})
    with pytest.raises(ValueError, match=r"^\[Device\] gemm: expected .*, got '\\ud800'$"):
        vkrnn.Device(gemm="\ud800")


def test_options_show_in_the_plan(vulkan: vkrnn.Device) -> None:
    """Every plan of the device has the fixed options and is otherwise unchanged."""
    listed = vulkan.strategies  # followed by strategies that only some devices have
    assert listed["schedule"][:2] == ["steps", "tiles"]
    assert listed["gemm"][:2] == ["register", "tiled"]
    with pytest.raises(TypeError, match=r"^\[Device\] lanes: expected an int of at least 0, got str$"):
        vkrnn.Device(vulkan.index, lanes="two")  # type: ignore[arg-type]
    usual = vkrnn.plan(vkrnn.single_gate_rnn, SOURCE, WEIGHT, device=vulkan).strategy
    for fixed in ({"gemm": "tiled"}, {"gemm": "register"}, {"schedule": "steps", "rows": 3}):
        other = vkrnn.Device(vulkan.index, **fixed)
        shown = vkrnn.plan(vkrnn.single_gate_rnn, SOURCE, WEIGHT, device=other).strategy
        same = {} if usual["schedule"] != shown["schedule"] else usual  # another time loop has other parameters
        assert shown == {**shown, **same, **fixed}
        assert all(f", {name}={value!r}" in repr(other) for name, value in fixed.items())
        other.close()


def test_every_way_to_name_a_device(own: vkrnn.Device) -> None:
    """An object, an index, a name and no selection at all give the same bits."""
    wanted = run(own)
    for device in (own.index, str(own.index), own.name):
        np.testing.assert_array_equal(run(device), wanted)
    with own:
        np.testing.assert_array_equal(run(), wanted)


def test_with_makes_a_device_current(own: vkrnn.Device) -> None:
    """Blocks can be nested. The device stays open at the end of a block."""
    usual = vkrnn.default_device()
    other = vkrnn.Device()
    with own:
        assert vkrnn.default_device() is own
        run()
        with other, own:
            assert vkrnn.default_device() is own
        assert vkrnn.default_device() is own
    assert vkrnn.default_device() is usual
    assert own.statistics()["calls"] == 1
    assert not own.closed
    other.close()


def test_with_applies_to_one_thread(own: vkrnn.Device) -> None:
    """Other threads do not see the block."""
    seen: list[vkrnn.Device] = []
    with own:
        thread = threading.Thread(target=lambda: seen.append(vkrnn.default_device()))
        thread.start()
        thread.join()
    assert seen[0] is not own


def test_statistics_count(own: vkrnn.Device) -> None:
    """A call adds to the counters. The CPU reads NumPy arguments in place, and Vulkan uploads them."""
    before = own.statistics()
    run(own)
    after = own.statistics()
    assert after["calls"] == before["calls"] + 1
    read, not_read = ("bytes_imported", "bytes_uploaded") if is_native(own) else ("bytes_uploaded", "bytes_imported")
    assert after[read] == before[read] + SOURCE.nbytes + WEIGHT.nbytes
    assert after[not_read] == before[not_read]
    # If the host can map the device's memory, results are not downloaded.
    copied = 0 if sees(own) else SOURCE.nbytes
    assert after["bytes_downloaded"] == before["bytes_downloaded"] + copied
    assert after["last_host_seconds"] > 0


def test_closed_device(own: vkrnn.Device) -> None:
    """It refuses calls, holds no memory, shows in its repr that it is closed, and can be closed again."""
    run(own)
    own.close()
    own.close()
    assert own.closed
    assert repr(own).endswith(", closed>")
    assert own.statistics()["bytes_allocated"] == 0
    with pytest.raises(
        vkrnn.DeviceError, match=r"^\[single_gate_rnn\] the device is closed; open a new vkrnn\.Device$"
    ):
        run(own)


def test_lost_device(vulkan: vkrnn.Device) -> None:
    """All later calls on it fail, and a new device works."""
    wanted = run(vulkan)
    vulkan._open().lose_for_test()
    with pytest.raises(vkrnn.DeviceError, match=r"^\[single_gate_rnn\] "):
        run(vulkan)
    assert vulkan.lost
    assert repr(vulkan).endswith(", lost>")
    with pytest.raises(vkrnn.DeviceError, match=r"^\[single_gate_rnn\] "):
        run(vulkan)
    new = vkrnn.Device(vulkan.index)
    np.testing.assert_array_equal(run(new), wanted)
    new.close()


@closes_the_default
@pytest.mark.parametrize(("native", "how"), [(True, "close"), (False, "close"), (False, "lose")])
def test_default_device_is_replaced(monkeypatch: pytest.MonkeyPatch, how: str, *, native: bool) -> None:
    """A new default device replaces one that was closed or lost."""
    monkeypatch.setenv("VKRNN_DEVICE", str(position(native=native)))
    old = vkrnn.default_device()
    run()
    if how == "close":
        old.close()
    else:
        old._open().lose_for_test()
        with pytest.raises(vkrnn.DeviceError):
            run()
    new = vkrnn.default_device()
    assert new is not old
    run()
    assert vkrnn.default_device() is new


def test_vkrnn_device_selects_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """VKRNN_DEVICE holds an index or a part of the name. Of several devices of one name, it selects the first."""
    listed = vkrnn.devices()
    for device in listed:
        first = next(each for each in listed if each.name == device.name)
        for value, wanted in ((str(device.index), device), (device.name.upper(), first)):
            monkeypatch.setenv("VKRNN_DEVICE", value)
            assert vkrnn.default_device().index == wanted.index
    monkeypatch.setenv("VKRNN_DEVICE", "abacus")
    with pytest.raises(ValueError, match=r"^VKRNN_DEVICE: expected a part of a device's name, got 'abacus' \("):
        run()


def test_from_many_threads(own: vkrnn.Device) -> None:
    """Calls from several threads on one device give the same bits."""
    wanted = run(own)
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda: answers.extend(run(own) for _ in range(5))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 20
    for answer in answers:
        np.testing.assert_array_equal(answer, wanted)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no os.fork on this system")
def test_after_a_fork() -> None:
    """A child of a process that used Vulkan opens its own device, or gets an error if the driver cannot do that."""
    program = """
import os, warnings, numpy, vkrnn
warnings.simplefilter("ignore")
def run():
    return vkrnn.single_gate_rnn(numpy.ones((5, 3, 4), "f4"), numpy.full((4, 4), 0.125, "f4")).output.sum()
wanted = run()
child = os.fork()
if child == 0:
    try:
        os._exit(0 if run() == wanted else 1)
    except vkrnn.DeviceError:
        os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), run() == wanted)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"VKRNN_DEVICE": vkrnn.devices()[position(native=False)].name},  # a child sees no CUDA device
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS_AFTER,
    )
    assert done.stdout == "0 True\n", done.stderr
