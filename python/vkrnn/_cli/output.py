"""Progress and output of the command line, which must survive a closed pipe and Ctrl-C."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Progress", "run", "say"]

_INTERRUPTED = 130  # the exit status of a program that SIGINT has ended, as shells report it
_CLEAR = "\r\x1b[K"


class _OutputError(Exception):
    """Standard output cannot be written to. The cause has the reason."""


def say(*lines: str) -> None:
    """Write lines to standard output and flush it. Does nothing if the process has no standard output."""
    if sys.stdout is None:
        return
    try:
        for line in lines:
            sys.stdout.write(line + "\n")
        sys.stdout.flush()
    except OSError as error:
        raise _OutputError from error


@dataclass
class Progress:
    """A progress line on standard error, shown on terminals only."""

    title: str

    def show(self, done: float, what: str) -> None:
        """Show which part of the work is done, from 0 to 1, and what comes next."""
        _write_to_terminal(f"{_CLEAR}[{'#' * int(20 * done):<20}] {self.title}: {what}"[:120])

    def clear(self) -> None:
        """Remove the line."""
        _write_to_terminal(_CLEAR)


def _write_to_terminal(text: str) -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write(text)
        sys.stderr.flush()


def run(main: Callable[[], int]) -> int | str:
    """Return the exit status of `main`, or a message for standard error, as `sys.exit` takes them.

    Characters that the terminal's encoding lacks are escaped. Without a reader the process ends quietly with status 1.
    Ctrl-C ends it with one line and status 130.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            return main()
        finally:
            say()  # flushes the output of argparse
    except KeyboardInterrupt:
        _write_to_terminal(_CLEAR)  # what was in progress
        print("Interrupted.", file=sys.stderr)  # noqa: T201
        return _INTERRUPTED
    except _OutputError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discards the rest of the buffer
        reason = error.__cause__
        return 1 if isinstance(reason, BrokenPipeError) else f"standard output cannot be written to: {reason}"
