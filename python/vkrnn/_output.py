"""Tables, and output of the command line, which must survive a closed pipe."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Sequence

__all__ = ["run", "say", "table"]


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


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as lines of text in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def run(main: Callable[[], int]) -> int | str:
    """Return the exit status of `main`, or a message for standard error, as `sys.exit` takes them.

    Characters that the terminal's encoding lacks are escaped. Without a reader the process ends quietly with status 1.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            return main()
        finally:
            say()  # flushes the output of argparse
    except _OutputError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discards the rest of the buffer
        reason = error.__cause__
        return 1 if isinstance(reason, BrokenPipeError) else f"standard output cannot be written to: {reason}"
