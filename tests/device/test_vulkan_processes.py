"""Processes that use Vulkan and fork, exit while threads call, or get signals while a device is opened."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import vkrnn
from hidden import NO_CUDA, vulkan_alone
from resident import position
from scale import HANGS_AFTER, distinct, sample

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no os.fork on this system")
COMPILER = shutil.which("cc")
LLVMPIPE = next((each.index for each in vkrnn.devices() if each.backend == "vulkan" and each.type == "cpu"), None)
SUPPORT = str(Path(__file__).parents[1] / "support")
INHERITED = "the device was opened in another process and cannot be used after a fork; open a new vkrnn.Device"
BEGIN = """
    import os, sys, threading
    import numpy as np
    import vkrnn
    source, weight = np.ones((50, 3, 32), np.float32), np.full((32, 8), 0.125, np.float32)
    vkrnn.lstm(source, weight)
"""


def run(program: str, begin: str = BEGIN, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program on a Vulkan device, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(begin) + textwrap.dedent(program)],
        env=os.environ | {"VKRNN_DEVICE": str(position(native=False))} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS_AFTER,
    )


@needs_fork
@pytest.mark.parametrize("work", ["pass", "np.ones((300, 300)) @ np.ones((300, 300))", "vkrnn.devices()", "fork(0)"])
def test_a_forked_child_exits_normally(work: str) -> None:
    """The child lacks the driver's threads, for which the driver waits at exit; Python's own exit steps still run."""
    program = f"""
        import atexit
        def fork(depth):
            pid = os.fork()
            if pid == 0:
                if depth:
                    {work}
                atexit.register(lambda: print("child ends"))
                sys.exit(5 + depth)
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(fork(1), flush=True)
        print(vkrnn.lstm(source, weight).output.shape)
    """
    done = run(program)
    ends = "child ends\n" * (2 if work == "fork(0)" else 1)
    assert (done.returncode, done.stdout) == (0, f"{ends}6\n(50, 3, 8)\n"), done.stderr


@needs_fork
def test_multiprocessing_that_forks() -> None:
    """A forked pool does NumPy work after its parent made calls on Vulkan."""
    program = """
        import multiprocessing
        def work(size):
            return float((np.ones((size, size)) @ np.ones((size, size))).sum())
        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(pool.map(work, [300, 10, 300]))
            pool.close()
            pool.join()
        def main():
            work(300)
            sys.exit(0)
        child = multiprocessing.get_context("fork").Process(target=main)
        child.start()
        child.join()
        print(child.exitcode)
    """
    done = run(program)
    assert (done.returncode, done.stdout) == (0, f"{[300.0**3, 10.0**3, 300.0**3]}\n0\n"), done.stderr


@needs_fork
@pytest.mark.parametrize("milliseconds", [2, 10, 30])
def test_a_fork_while_the_drivers_are_loaded(milliseconds: int) -> None:
    """The child can load the drivers itself, because no lock of the loader is held across the fork."""
    program = f"""
        import signal, time
        thread = threading.Thread(target=vkrnn.devices)
        thread.start()
        time.sleep({milliseconds} / 1000)
        pid = os.fork()
        if pid == 0:
            signal.alarm({HANGS_AFTER})
            print(len(vkrnn.devices()), flush=True)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        thread.join()
    """
    done = run(program, begin="import os, threading, vkrnn", **NO_CUDA)  # CUDA works in no child of its process
    listed = [device for device in vkrnn.devices() if device.backend != "cuda"]
    assert (done.returncode, done.stdout) == (0, f"{len(listed)}\n0\n"), done.stderr


@needs_fork
@pytest.mark.skipif(LLVMPIPE is None, reason="needs llvmpipe: with NVIDIA's driver the child hangs")
@pytest.mark.parametrize("leaves", [True, False])
def test_a_fork_in_a_signal_handler_during_a_call(*, leaves: bool) -> None:
    """The child lacks the driver's threads. It leaves by sys.exit, or its call raises an error."""
    program = f"""
        import signal
        sys.path.insert(0, {SUPPORT!r})
        from forked_child import end_of
        from polls import polling
        source, parent, children = np.ones((4000, 3, 32), np.float32), os.getpid(), []
        def fork(*_):
            pid = os.fork()
            if pid:
                children.append(pid)
            elif {leaves}:
                sys.exit(7)
        wanted = vkrnn.lstm(source, weight).output
        signal.signal(signal.SIGALRM, fork)
        with polling(lambda: signal.raise_signal(signal.SIGALRM)):
            try:
                assert (vkrnn.lstm(source, weight).output == wanted).all()
            except vkrnn.DeviceError as error:
                assert os.getpid() != parent
                assert str(error) == "[lstm] " + {INHERITED!r}, error
                os._exit(7)
        print(end_of(*children))
    """
    done = run(program, VKRNN_DEVICE=str(LLVMPIPE))
    assert (done.returncode, done.stdout) == (0, "7\n"), done.stderr


@needs_fork
@pytest.mark.skipif(LLVMPIPE is None, reason="needs llvmpipe")
def test_a_fork_while_other_threads_use_the_device() -> None:
    """The child counts calls and is refused all others, whatever the threads that it lacks had locked."""
    program = f"""
        sys.path.insert(0, {SUPPORT!r})
        from forked_child import ends_beside
        device, array = vkrnn.default_device(), vkrnn.asarray(source)
        def work():
            vkrnn.lstm(array, weight).output.numpy()
            device.statistics()
        def child():
            assert device.statistics()["calls"] > 0
            for use in (device.synchronize, array.wait, lambda: vkrnn.lstm(array, weight)):
                try:
                    use()
                except vkrnn.DeviceError as error:
                    assert str(error).endswith({INHERITED!r}), error
                else:
                    return 4
            return 3
        ends = ends_beside(work, child, 20)
        print(ends == 20 * [3], ends[-1])
    """
    done = run(program, VKRNN_DEVICE=str(LLVMPIPE))
    assert (done.returncode, done.stdout) == (0, "True 3\n"), done.stderr


@needs_fork
@pytest.mark.skipif(LLVMPIPE is None, reason="needs llvmpipe")
def test_a_fork_while_other_threads_open_and_close_devices() -> None:
    """The child lists devices: no thread that it lacks had the loader's lock."""
    program = f"""
        sys.path.insert(0, {SUPPORT!r})
        from forked_child import ends_beside
        def work():
            device = vkrnn.Device({LLVMPIPE})
            device.synchronize()
            device.close()
        ends = ends_beside(work, lambda: len(vkrnn.devices()), 40)
        print(ends == 40 * [len(vkrnn.devices())], ends[-1])
    """
    done = run(program, VKRNN_DEVICE=str(LLVMPIPE), **NO_CUDA)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("True "), done.stdout


@pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
def test_a_fork_while_a_driver_holds_its_lock(tmp_path: Path) -> None:
    """There is no deadlock if a driver's fork handler takes a lock that a thread in the driver holds."""
    library, manifest, loading = tmp_path / "slow.so", tmp_path / "slow.json", tmp_path / "loading"
    source = Path(__file__).parents[1] / "support" / "slow_driver.c"
    subprocess.run([str(COMPILER), "-shared", "-fPIC", "-pthread", "-o", library, source], check=True)
    driver = {"library_path": str(library), "api_version": "1.3.0"}
    manifest.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": driver}))
    program = f"""
        import os, pathlib, threading, time
        os.environ |= {vulkan_alone(manifest) | NO_CUDA | {"VKRNN_TEST_LOADING": str(loading)}!r}
        import vkrnn
        thread = threading.Thread(target=vkrnn.devices)
        thread.start()
        while not pathlib.Path({str(loading)!r}).exists():
            time.sleep(0.001)
        pid = os.fork()
        if pid == 0:
            print([one.name.split()[0] for one in vkrnn.devices()], flush=True)
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        thread.join()
    """
    done = run(program, begin="")
    assert (done.returncode, done.stdout) == (0, "['cpu']\n0\n"), done.stderr


CALLS = {
    "numpy": "vkrnn.lstm(source, weight)",
    "long": "vkrnn.lstm(np.repeat(source, 100, axis=0), weight)",
    "arrays": "vkrnn.lstm(vkrnn.asarray(source), weight).output.numpy()",
    "under way": "vkrnn.lstm(vkrnn.asarray(source), weight, descriptor=options(number))",
    "compiled": "vkrnn.lstm(source, weight, descriptor=options(number))",
}


@pytest.mark.parametrize("call", distinct(list(CALLS), 2))
def test_the_process_ends_while_daemon_threads_call(call: str) -> None:
    """It ends without a crash or hang, also while the driver is compiling."""
    program = f"""
        import time
        def options(number):
            names = ["input_gate_activation", "forget_gate_activation", "output_gate_activation", "activation"]
            return vkrnn.LSTMDescriptor(**{{name: number // 5**place % 5 for place, name in enumerate(names)}})
        begun = threading.Semaphore(0)
        def work(number):
            while True:
                number += 7
                {CALLS[call]}
                begun.release()
        for thread in range(3):
            threading.Thread(target=work, args=(100 * thread,), daemon=True).start()
        for _ in range(6):
            begun.acquire()
        print("end")
    """
    for _ in range(2):
        done = run(program)
        assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no signal.setitimer on this system")
def test_a_handler_that_raises_while_a_device_is_opened() -> None:
    """Each attempt can be interrupted and repeated until the device is open."""
    program = """
        import signal, time
        class Tick(Exception): pass
        def tick(*_):
            raise Tick
        def open_another():
            begun = time.perf_counter()
            vkrnn.Device(vkrnn.default_device().index)._open()
            return time.perf_counter() - begun
        taken = min(open_another() for _ in range(5))
        signal.signal(signal.SIGALRM, tick)
        device = vkrnn.Device(vkrnn.default_device().index)
        attempts = 0
        while attempts < 50:
            attempts += 1
            try:
                signal.setitimer(signal.ITIMER_REAL, taken / 4)
                device._open()
                signal.setitimer(signal.ITIMER_REAL, 0)
                break
            except Tick:
                pass
        print(attempts < 50)
    """
    done = run(program)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no signal.setitimer on this system")
@pytest.mark.parametrize("milliseconds", sample([2, 5, 10, 20, 40], 2))
def test_a_handler_that_makes_calls_while_a_device_is_opened(milliseconds: int) -> None:
    """The handler may open the device itself."""
    program = f"""
        import signal
        import numpy as np
        import vkrnn
        source, weight = np.ones((5, 3, 32), np.float32), np.ones((32, 8), np.float32)
        made = []
        def call(*_):
            made.append(vkrnn.lstm(source, weight).output.shape)
        signal.signal(signal.SIGALRM, call)
        signal.setitimer(signal.ITIMER_REAL, {milliseconds} / 1000)
        while not made:
            vkrnn.lstm(source, weight)
        print(*made)
    """
    done = run(program, begin="")
    assert (done.returncode, done.stdout) == (0, "(5, 3, 8)\n"), done.stderr


@pytest.mark.usefixtures("vulkan_build")
def test_a_manifest_that_cannot_be_read(tmp_path: Path) -> None:
    """The CPU device still works, and the message has the Vulkan loader's reason."""
    manifest = tmp_path / "driver.json"
    manifest.write_text("{")
    done = subprocess.run(
        [sys.executable, "-c", "import vkrnn; print(len(vkrnn.devices())); vkrnn.Device('llvmpipe')"],
        env=os.environ | vulkan_alone(manifest) | NO_CUDA,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "1\n"
    last = done.stderr.splitlines()[-1]
    expected = "ValueError: [Device] selector: expected a part of a device's name, got 'llvmpipe' (0: "
    assert last.startswith(
        f"{expected}{vkrnn.Device('cpu (').name}; Vulkan: no Vulkan driver was found, or a driver's "
    )
