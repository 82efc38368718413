"""Waits for a child process. Test programs that fork import this module."""

from __future__ import annotations

import os
import signal
import time

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
