"""Contenders that each have a process to themselves, so that no library's threads spin beside another's work.

The processes take turns in every row. One works, and all others are stopped.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

from . import common
from .common import Pace, Problem, Record

CONTEXT = multiprocessing.get_context("spawn")
PR_SET_PDEATHSIG = 1


class Worker:
    """A process that measures its contender and is stopped between its turns."""

    def __init__(self, make: Callable[[], Iterable[Problem]], pace: Pace) -> None:
        """Start the process. `make` returns, in it, the problems with no other contender."""
        self._pipe, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_serve, args=(theirs, make, pace), daemon=True)
        self._process.start()
        theirs.close()
        self._stop()

    def turn(self) -> list[Record]:
        """Let the process work for one turn. The turn after the last round has no work and returns the records."""
        os.kill(self._process.pid or 0, signal.SIGCONT)
        self._pipe.send(None)
        return self._stop()

    def _stop(self) -> list[Record]:
        try:
            found: list[Record] = self._pipe.recv()
        except EOFError:
            raise SystemExit("a contender's process has ended early; its error is above") from None
        os.kill(self._process.pid or 0, signal.SIGSTOP)
        return found

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.join()


def _serve(pipe: Connection, make: Callable[[], Iterable[Problem]], pace: Pace) -> None:
    """Measure the problems, and give the turn away after each round and after each problem."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a stopped process does not see that its parent ended

    def give_turn_away(found: Sequence[Record] = ()) -> None:
        pipe.send(found)
        pipe.recv()

    give_turn_away()
    for problem in make():
        records = common.measure(problem, pace, give_turn_away)
        give_turn_away([replace(record, alone=True) for record in records])


def measure_all(
    makers: Sequence[Callable[[], Iterable[Problem]]], count: int, pace: Pace, output: Path | None
) -> Iterator[list[Record]]:
    """Measure each maker's problems in a process. They are the same in all, except for the contenders."""
    with ExitStack() as stack, tqdm(total=count * pace.rounds, unit="round", disable=None, leave=False) as progress:
        workers = [stack.enter_context(closing(Worker(make, pace))) for make in makers]
        for _ in range(count):
            for _ in range(pace.rounds):
                for worker in workers:
                    worker.turn()
                progress.update()
            records = [record for worker in workers for record in worker.turn()]
            common.write(records, output)
            yield records
