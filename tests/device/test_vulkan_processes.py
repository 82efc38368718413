"""Processes that use Vulkan: they fork."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from resident import position

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
BEGIN = """
    import os, sys, threading
    import numpy as np
    import vkrnn
    source, weight = np.ones((50, 3, 32), np.float32), np.full((32, 8), 0.125, np.float32)
    vkrnn.lstm(source, weight)
"""


def run(program: str, begin: str = BEGIN) -> subprocess.CompletedProcess[str]:
    """Run a program on a Vulkan device, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(begin) + textwrap.dedent(program)],
        env=os.environ | {"VKRNN_DEVICE": str(position(native=False))},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@needs_fork
@pytest.mark.parametrize("work", ["pass", "np.ones((300, 300)) @ np.ones((300, 300))", "vkrnn.devices()", "fork(0)"])
def test_a_child_ends_as_it_says(work: str) -> None:
    """It has not the driver's threads, which the driver waits for at exit; its Python ends as it would without."""
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
    """A pool whose parent has made calls on Vulkan, for NumPy's work."""
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
