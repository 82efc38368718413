"""The CPU device's threads: how many there are, equal bits for any number, interrupts."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import vkrnn
from cases import GATES
from cpu_programs import KINDS, run, shared_case
from resident import assert_same_bits, everything, opened

Array = NDArray[Any]

UPWARD = {"x86_64": 0x800, "aarch64": 0x400000}  # FE_UPWARD
COMPILER = shutil.which("cc")


@pytest.fixture(name="cpu", scope="module")
def _cpu() -> Iterator[vkrnn.Device]:
    with opened("native") as device:
        yield device


# Any number of threads


# T, N, I, H: one row with shared units, a small call, shared rows, more of both, many rows of few units.
SIZES = [(20, 1, 33, 300), (5, 3, 7, 4), (12, 67, 30, 40), (9, 33, 129, 130), (3, 700, 5, 17)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(
    ("cell", "kind"), [(cell, kind) for cell in GATES for kind in KINDS if cell == "gru" or kind != "reset after"]
)
def test_the_same_bits_with_any_number_of_threads(
    cpu: vkrnn.Device, monkeypatch: pytest.MonkeyPatch, cell: str, kind: str, sizes: tuple[int, int, int, int]
) -> None:
    """Forward and gradients. The variable is read at each call, and never gives more threads than processors."""
    case = shared_case(cell, kind, sizes)
    for given in (case, replace(case, present=frozenset({"input_weight"}))):
        lengths = np.arange(case.N, dtype=np.int32) * 7 % (case.T + 1) if kind == "lengths" else None
        monkeypatch.setenv("VKRNN_NUM_THREADS", "1")
        wanted = everything(given, cpu, lengths)
        for threads in ("2", "3", "5"):
            monkeypatch.setenv("VKRNN_NUM_THREADS", threads)
            assert_same_bits(everything(given, cpu, lengths), wanted)


@pytest.mark.parametrize("number", ["0", "-1", "many", " 2", "99999999999"])
def test_wrong_number_of_threads(cpu: vkrnn.Device, monkeypatch: pytest.MonkeyPatch, number: str) -> None:
    """The message names the variable, and the next call without it is right."""
    case = shared_case("lstm", "plain", (5, 3, 7, 4))
    wanted = everything(case, cpu)
    monkeypatch.setenv("VKRNN_NUM_THREADS", number)
    with pytest.raises(vkrnn.DeviceError) as caught:
        everything(case, cpu)
    assert str(caught.value) == f"[lstm] VKRNN_NUM_THREADS: expected a positive number, got '{number}'"
    monkeypatch.setenv("VKRNN_NUM_THREADS", "")
    assert_same_bits(everything(case, cpu), wanted)


@pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="needs a C compiler and LD_PRELOAD")
def test_environment_variables_are_read_under_the_gil(tmp_path: Path) -> None:
    """Otherwise another thread that adds variables could crash the process."""
    library, source = tmp_path / "getenv.so", Path(__file__).parents[1] / "support" / "getenv_without_gil.c"
    subprocess.run([str(COMPILER), "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    program = """
    import numpy as np
    import vkrnn
    for device in vkrnn.devices():
        vkrnn.zeros(1, device=device)
    vkrnn.single_gate_rnn(np.ones((2, 3, 4), np.float32), np.ones((4, 4), np.float32))
    """
    done = run(program, LD_PRELOAD=str(library))
    assert done.returncode == 0, done.stderr
    assert "without the GIL" not in done.stderr
    read = {line.split()[0] for line in done.stderr.splitlines() if line.endswith("with the GIL")}
    assert read >= {"VKRNN_NUM_THREADS", "OMP_NUM_THREADS", "VKRNN_CPU_TARGET", "VK_DRIVER_FILES"}


def test_omp_num_threads(cpu: vkrnn.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """OMP_NUM_THREADS limits the threads, too; a value that is not a number is ignored."""
    case = shared_case("gru", "plain", (9, 33, 129, 130))
    monkeypatch.delenv("VKRNN_NUM_THREADS", raising=False)
    wanted = everything(case, cpu)
    for value in ("1", "2", "4,2", "nonsense", "0", ""):
        monkeypatch.setenv("OMP_NUM_THREADS", value)
        assert_same_bits(everything(case, cpu), wanted)


ROUNDED = """
    import ctypes, os
    from cpu_programs import shared_case
    from resident import assert_same_bits, everything
    case = shared_case("lstm", "plain", (12, 67, 30, 40))
    nearest = everything(case)  # the threads are made before the caller's rounding changes
    assert ctypes.CDLL(None).fesetround({upward}) == 0
    found = []
    for threads in ("1", "2"):
        os.environ["VKRNN_NUM_THREADS"] = threads
        found.append(everything(case))
    assert_same_bits(*found)
    print(all((array == same).all() for array, same in zip(found[0].values(), nearest.values())))
"""


@pytest.mark.skipif(platform.machine() not in UPWARD, reason="FE_UPWARD is not known for this processor")
def test_all_threads_round_as_the_caller_does() -> None:
    """All threads use the caller's rounding mode, which changes the bits."""
    done = run(textwrap.dedent(ROUNDED).format(upward=UPWARD[platform.machine()]))
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


BUSY = """
    import os, threading, time
    from pathlib import Path

    def others():
        own = str(threading.get_native_id())
        return [task for task in Path("/proc/self/task").iterdir() if task.name != own]

    def seconds_by_thread():
        return {task.name: int((task / "schedstat").read_text().split()[0]) for task in others()}

    def others_that_ran(work):
        # Until threads of earlier calls sleep.
        while any((task / "stat").read_text().rsplit(")", 1)[1].split()[0] != "S" for task in others()):
            time.sleep(0.001)
        before = seconds_by_thread()
        work()
        return sum(spent > before.get(thread, 0) for thread, spent in seconds_by_thread().items())
"""
needs_two_processors = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity")
    or len(os.sched_getaffinity(0)) < 2
    or not Path("/proc/self/schedstat").exists(),
    reason="needs two processors and their statistics",
)


@needs_two_processors
@pytest.mark.parametrize("how", ["affinity", "VKRNN_NUM_THREADS", "OMP_NUM_THREADS"])
def test_no_more_threads_than_allowed(how: str) -> None:
    """Each limit holds, also after calls with more threads, and the bits stay the same."""
    program = (
        BUSY
        + f"""
    from cpu_programs import shared_case
    from resident import assert_same_bits, everything
    case = shared_case("lstm", "plain", (20, 64, 130, 130))
    before = len(others())
    everything(case)
    print(len(others()) > before)
    wanted = None
    def work():
        global wanted
        for _ in range(5):
            got = everything(case)
            wanted = wanted or got
            assert_same_bits(got, wanted)
    work()
    if {how!r} == "affinity":
        os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
    else:
        os.environ[{how!r}] = "1"
    print(others_that_ran(work))
    """
    )
    done = run(program)
    assert (done.returncode, done.stdout) == (0, "True\n0\n"), done.stderr


def test_eight_threads_call_at_once(cpu: vkrnn.Device) -> None:
    """Each thread gets the bits that it gets alone."""
    chosen = [shared_case(cell, "plain", sizes) for cell in GATES for sizes in SIZES]
    wanted = [everything(case, cpu) for case in chosen]
    barrier = threading.Barrier(8)

    def work(thread: int) -> None:
        barrier.wait()
        for index in np.random.default_rng(thread).permutation(len(chosen)):
            assert_same_bits(everything(chosen[index], cpu), wanted[index])

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(work, thread) for thread in range(8)]:
            future.result()


INTERRUPTED = """
    import signal
    import numpy as np
    import vkrnn
    from polls import polling

    signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored when the tests start
    CALLS = {
        "many steps": {"source": (1000, 1, 1), "recurrent_weight": (1, 1)},
        "a team's steps": {"source": (300, 1, 600), "recurrent_weight": (600, 600)},
        "rows": {"source": (100, 64, 256), "recurrent_weight": (256, 256)},
        "one product": {"source": (1, 4000, 999), "recurrent_weight": (512, 512), "input_weight": (512, 999)},
    }
    given = {name: np.zeros(shape, np.float32) for name, shape in CALLS[KIND].items()}
    given["source"][:] = 1
    wanted = vkrnn.single_gate_rnn(**given).output
    out = np.full(wanted.shape, np.nan, np.float32)
    try:
        with polling(lambda: signal.raise_signal(signal.SIGINT), at=2):
            vkrnn.single_gate_rnn(**given, out=out)
    except KeyboardInterrupt:
        print("stopped before it had written everything", np.isnan(out).any())
    print("right", np.array_equal(vkrnn.single_gate_rnn(**given).output, wanted))
"""


@pytest.mark.parametrize("kind", ["many steps", "a team's steps", "rows", "one product"])
def test_a_call_can_be_interrupted(kind: str) -> None:
    """Ctrl-C ends a call before it has written all of its results, and the next call is right."""
    done = run(f"KIND = {kind!r}\n" + textwrap.dedent(INTERRUPTED))
    expected = "stopped before it had written everything True\nright True\n"
    assert (done.returncode, done.stdout) == (0, expected), done.stderr
