"""The CPU device in processes that fork, and in processes that end during calls."""

from __future__ import annotations

import os
import textwrap

import pytest

from cpu_programs import run
from scale import distinct

SHARED = """
    import os, sys, threading
    import numpy as np
    import vkrnn
    from cpu_programs import shared_case
    from resident import assert_same_bits, everything
    case = shared_case("gru", "bidirectional", (9, 33, 129, 130))
    wanted = everything(case)
"""
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no os.fork on this system")


@needs_fork
def test_a_forked_child_computes_and_exits() -> None:
    """A child forked after calls computes and leaves through sys.exit; so does its own child."""
    program = (
        SHARED
        + """
    def child(depth):
        assert_same_bits(everything(case), wanted)
        if depth:
            again = os.fork()
            if again == 0:
                child(depth - 1)
            assert os.waitstatus_to_exitcode(os.waitpid(again, 0)[1]) == 0
        sys.exit(0)
    pid = os.fork()
    if pid == 0:
        child(1)
    assert_same_bits(everything(case), wanted)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """
    )
    done = run(program)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


@needs_fork
def test_a_fork_while_other_threads_call() -> None:
    """The child lacks those threads. It computes on a device of its own and on inherited arrays."""
    program = (
        SHARED
        + """
    from forked_child import ends_beside
    array = vkrnn.asarray(np.ones((5, 3, 4), np.float32))
    def work():
        assert_same_bits(everything(case), wanted)
    def child():
        work()
        assert (vkrnn.single_gate_rnn(array, np.zeros((4, 4), np.float32)).output.numpy() == 1).all()
        return 0
    print(ends_beside(work, child, 5))
    """
    )
    done = run(program)
    assert (done.returncode, done.stdout) == (0, "[0, 0, 0, 0, 0]\n"), done.stderr


FORKS_DURING_A_CALL = """
    import os, signal, sys
    import numpy as np
    import vkrnn
    from forked_child import end_of
    from polls import polling

    source, weight = np.ones((500, 64, 64), np.float32), np.full((64, 64), 0.01, np.float32)
    parent, children = os.getpid(), []

    def fork(*_):
        if os.getpid() != parent:
            return  # the child's own call
        pid = os.fork()
        if pid:
            children.append(pid)
        elif {leaves}:
            sys.exit(7)

    wanted = call().output
    signal.signal(signal.SIGALRM, fork)
    for _ in range(2):
        with polling(lambda: signal.raise_signal(signal.SIGALRM), at=3):
            got = call().output
        assert (np.asarray(got) == np.asarray(wanted)).all()
        if os.getpid() != parent:
            assert (np.asarray(call().output) == np.asarray(wanted)).all()
            os._exit(3)
    print([end_of(child) for child in children])
"""


@needs_fork
@pytest.mark.parametrize(("leaves", "code"), [(True, 7), (False, 3)])
def test_a_fork_in_a_signal_handler_during_a_call(*, leaves: bool, code: int) -> None:
    """The child lacks the call's other threads. It leaves by sys.exit, or repeats the call."""
    call = "def call():\n    return vkrnn.single_gate_rnn(source, weight)\n"
    done = run(call + textwrap.dedent(FORKS_DURING_A_CALL).format(leaves=leaves), VKRNN_NUM_THREADS="2")
    assert (done.returncode, done.stdout) == (0, f"{[code] * 2}\n"), done.stderr


# Hooks that are registered before vkrnn is imported run while its own hold drivers for the fork.
HOOKED = """
    import gc, os, sys, threading
    hook = lambda name: None
    names = ("before", "after_in_parent", "after_in_child")
    os.register_at_fork(**{name: lambda name=name: hook(name) for name in names})
    import numpy as np
    import vkrnn
    from forked_child import end_of
    gc.disable()
    source, weight = np.ones((3, 2, 4), np.float32), np.eye(4, dtype=np.float32)
    vkrnn.single_gate_rnn(source, weight)
"""
GARBAGE = """
    garbage = [vkrnn.asarray(source), vkrnn.Device(0)]
    garbage[1].synchronize()
    garbage.append(garbage)
    del garbage
    hook = lambda name: gc.collect() if name == "{}" else None
"""
HOOKS = {
    "before collects": GARBAGE.format("before"),
    "after_in_parent collects": GARBAGE.format("after_in_parent"),
    "after_in_child collects": GARBAGE.format("after_in_child"),
    "all call": """
    def hook(name):
        vkrnn.single_gate_rnn(source, weight)
        vkrnn.devices()
    """,
    "before waits for a thread that drops an array": """
    lock, locked, waits = threading.Lock(), threading.Event(), threading.Event()
    def hook(name):
        if name == "before":
            waits.set()
            lock.acquire()
        else:
            lock.release()
    def drop():
        array = vkrnn.asarray(source)
        with lock:
            locked.set()
            waits.wait()
            del array
    threading.Thread(target=drop).start()
    locked.wait()
    """,
    "the interpreter clears a thread's values": """
    values, ready = threading.local(), threading.Event()
    def keep():
        values.array = vkrnn.asarray(source)
        ready.set()
        threading.Event().wait()
    threading.Thread(target=keep, daemon=True).start()
    ready.wait()
    """,
}


@needs_fork
@pytest.mark.parametrize("what", HOOKS)
def test_what_python_does_around_a_fork(what: str) -> None:
    """While vkrnn holds drivers, Python runs other hooks and releases objects, and threads go on."""
    ends = """
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    print(end_of(pid))
    """
    done = run("".join(map(textwrap.dedent, (HOOKED, HOOKS[what], "\n", ends))))
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


@needs_fork
def test_a_fork_while_another_thread_asks_what_a_device_can_do() -> None:
    """The child finds no lock of the question taken."""
    program = """
    import os, threading
    import vkrnn
    from forked_child import end_of
    asks, end = threading.Event(), threading.Event()
    class SlowDevice(vkrnn.Device):
        @property
        def strategies(self):
            asks.set()
            end.wait()
            return super().strategies
    thread = threading.Thread(target=lambda: SlowDevice(0).rounds_products)
    thread.start()
    asks.wait()
    pid = os.fork()
    if pid == 0:
        os._exit(vkrnn.Device("cpu (").rounds_products)
    print(end_of(pid))
    end.set()
    thread.join()
    """
    done = run(program)
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


@needs_fork
def test_multiprocessing_that_forks() -> None:
    """A forked pool works after calls of its parent, beside NumPy's matrix products."""
    program = (
        SHARED
        + """
    import multiprocessing
    product = np.ones((300, 300), np.float32) @ np.ones((300, 300), np.float32)
    def work(_):
        assert (np.ones((300, 300), np.float32) @ np.ones((300, 300), np.float32) == product).all()
        assert_same_bits(everything(case), wanted)
        return os.getpid()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pids = pool.map(work, range(6))
    assert_same_bits(everything(case), wanted)
    print(len(pids), os.getpid() in pids)
    """
    )
    done = run(program)
    assert (done.returncode, done.stdout) == (0, "6 False\n"), done.stderr


@pytest.mark.parametrize("sizes", distinct([(5, 3, 7, 4), (2000, 64, 130, 130)], 2), ids=lambda sizes: f"T{sizes[0]}")
def test_the_process_ends_while_daemon_threads_call(sizes: tuple[int, int, int, int]) -> None:
    """It ends without a crash or a hang."""
    program = (
        SHARED
        + f"""
    case = shared_case("lstm", "plain", {sizes})
    arrays = {{name: np.zeros(case.shape(name), np.float32) for name in ("source", "recurrent_weight", "input_weight")}}
    begun = threading.Semaphore(0)
    def work():
        while True:
            begun.release()
            vkrnn.lstm(**arrays)
    for _ in range(3):
        threading.Thread(target=work, daemon=True).start()
    for _ in range(6):
        begun.acquire()
    print("end")
    """
    )
    for _ in range(5):
        done = run(program)
        assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
