"""Waits for a child process. Test programs that fork import this module."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

from scale import HANGS_AFTER


def end_of(child: int) -> int | str:
    """Return the child's exit status, or "hangs" if it does."""
    for _ in range(50 * HANGS_AFTER):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hangs"


def ends_beside(work: Callable[[], object], child: Callable[[], int], times: int) -> list[int | str]:
    """Fork `times` children while two threads repeat `work`, and return their ends. Stop at the first that hangs."""
    done, ends = threading.Event(), list[int | str]()

    def repeat() -> None:
        while not done.is_set():
            work()

    threads = [threading.Thread(target=repeat) for _ in range(2)]
    for thread in threads:
        thread.start()
    while len(ends) < times and "hangs" not in ends:
        pid = os.fork()
        if pid == 0:
            os._exit(child())
        ends.append(end_of(pid))
    done.set()
    for thread in threads:
        thread.join()
    return ends
