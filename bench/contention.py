"""Calls of the native CPU device while other programs use the processors.

Three comparisons: several processes with any number of threads, and the same with one thread each; a process that was
limited to one processor after its first call, and one that was started there; a process beside two busy loops, and the
same with one thread. The measure is the calls per second of all processes together. The two sides take turns, and the
ratio is the median over the rounds.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

import vkrnn
from vkrnn import reference

from . import common
from .common import CROWD, Contender, Pace, Problem, Sizes, cpu_name, milliseconds, scaled_error, show, table
from .problems import Arrays

SIZES, SMOKE_SIZES = Sizes(64, 8, 128, 128), Sizes(5, 3, 7, 4)
PROCESSES, SMOKE_PROCESSES = (2, 4, 8), (2,)
BUSY_LOOPS = 2
FLOOR = 0.8
VARIABLE = "VKRNN_NUM_THREADS"
ANY = "own choice of threads"

PACE, SMOKE = Pace(rounds=5, settle=0.5, turn=2.0), Pace(rounds=1, settle=0.02, turn=0.1)
AHEAD = 0.05  # seconds between announcing a turn and its start
CONTEXT = multiprocessing.get_context("spawn")


class Worker:
    """A process that makes calls for some time on request."""

    def __init__(self, sizes: Sizes, selector: str) -> None:
        """Start the process, and wait for its first call."""
        self.pipe, theirs = CONTEXT.Pipe()
        self.process = CONTEXT.Process(target=_serve, args=(theirs, sizes, selector), daemon=True)
        self.process.start()
        theirs.close()
        self.error: float = self.pipe.recv()

    def close(self) -> None:
        """End the process."""
        self.pipe.close()
        self.process.join()


def _serve(pipe: Connection, sizes: Sizes, selector: str) -> None:
    """Make a first call and send its error. Then send how many calls end within each turn, until the pipe is closed."""
    arrays, device = Arrays.draw("lstm", sizes), common.open_device(selector)

    def work() -> vkrnn.Results:
        return arrays.forward(vkrnn, device=device)

    pipe.send(scaled_error(work().output, arrays.forward(reference).output))
    while True:
        try:
            threads, first, last = pipe.recv()
        except EOFError:
            return
        os.environ.pop(VARIABLE, None)
        if threads is not None:
            os.environ[VARIABLE] = str(threads)
        count = 0
        while True:
            work()
            now = time.monotonic()  # this clock is the same in all processes
            if now >= last:
                break
            count += now >= first
        pipe.send(count)


class Side(NamedTuple):
    """One of the two sides of a comparison: processes that make calls at the same time."""

    what: str
    workers: Sequence[Worker]
    threads: int | None  # any number if None

    def seconds_a_call(self, pace: Pace) -> float:
        """Return the turn's length divided by the number of calls of all processes."""
        first = time.monotonic() + AHEAD + pace.settle
        for worker in self.workers:
            worker.pipe.send((self.threads, first, first + pace.turn))
        return pace.turn / max(1, sum([worker.pipe.recv() for worker in self.workers]))


Sides = tuple[Side, Side]  # the first one should be nearly as fast as the second one
Start = Callable[[], Worker]


def at_once(count: int) -> Callable[[ExitStack, Start], Sides]:
    """Return the comparison of several processes at once."""

    def sides(_: ExitStack, start: Start) -> Sides:
        workers = [start() for _ in range(count)]
        return Side(ANY, workers, None), Side("1 thread each", workers, 1)

    return sides


def cut(_: ExitStack, start: Start) -> Sides:
    """Compare a process limited to one processor with one that was started there."""
    before = os.sched_getaffinity(0)
    one, limited = {min(before)}, start()
    os.sched_setaffinity(limited.process.pid or 0, one)
    os.sched_setaffinity(0, one)
    try:
        started = start()
    finally:
        os.sched_setaffinity(0, before)
    return Side("cut after the first call", [limited], None), Side("started there", [started], None)


def beside_loops(stack: ExitStack, start: Start) -> Sides:
    """Compare any number of threads with one, beside busy loops."""
    worker = start()
    for _ in range(BUSY_LOOPS):
        loop = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
        stack.callback(loop.kill)
    return Side(ANY, [worker], None), Side("1 thread", [worker], 1)


def scenarios(counts: Sequence[int]) -> Iterator[tuple[str, Callable[[ExitStack, Start], Sides]]]:
    """Yield the comparisons by name."""
    for count in counts:
        yield f"{count} processes at once", at_once(count)
    yield "one processor", cut
    yield f"beside {BUSY_LOOPS} busy loops", beside_loops


def measure(
    make: Callable[[ExitStack, Start], Sides], arrays: Arrays, device: vkrnn.Device, pace: Pace
) -> tuple[Sides, np.ndarray[Any, Any], float]:
    """Return the two sides, the seconds per call of both, [rounds, 2], and the worst error of their first answers."""
    with ExitStack() as stack:

        def start() -> Worker:
            worker = Worker(arrays.sizes, str(device.index))
            stack.callback(worker.close)
            if worker.error > common.CHECK_TOLERANCE:
                raise common.WrongAnswerError(f"output is off by {worker.error:.1e}")
            return worker

        sides = make(stack, start)
        times = np.array([[side.seconds_a_call(pace) for side in sides] for _ in range(pace.rounds)])
        return sides, times, max(worker.error for side in sides for worker in side.workers)


def main() -> None:
    """Measure, print a table, say which floors were reached."""
    parser = common.arguments(__doc__ or "")
    parser.set_defaults(rounds=PACE.rounds)
    options = parser.parse_args()
    device = common.open_native(options.device)
    pace = SMOKE if options.smoke else replace(PACE, rounds=options.rounds)
    arrays = Arrays.draw("lstm", SMOKE_SIZES if options.smoke else SIZES)
    moved, flops = arrays.cost(device, gradients=False)
    rows, lines = [], []
    chosen = list(scenarios(SMOKE_PROCESSES if options.smoke else PROCESSES))
    for name, make in tqdm(chosen, unit="row", disable=None, leave=False):
        sides, times, error = measure(make, arrays, device, pace)
        problem = Problem(f"lstm, {name}", str(arrays.sizes), moved, flops, {}, [])
        records = []
        for side, seconds in zip(sides, times.T, strict=True):
            own = Contender("vkrnn", device.name, f"{device.driver_version}, {side.what}", dict, None)
            records.append(common.record_of(problem, own, error, CROWD, seconds.tolist()))
        common.write(records, options.output)
        ratio = float(np.median(times[:, 1] / times[:, 0]))
        shown = (f"{side.what}: {milliseconds(each.median)}" for side, each in zip(sides, records, strict=True))
        rows.append([name, *shown, f"{ratio:.2f}", f"{error:.1e}"])
        what = f"{name}, calls a second beside {sides[1].what}"
        lines.append(common.verdict(what, ratio, FLOOR, "times", at_least=True))
    where = [f"{device!r}, {cpu_name()}", *common.settings()]
    show([*where, f"lstm {arrays.sizes}, time a call of all processes together, medians", ""])
    show([*table(["scenario", "one side", "other side", "ratio", "error"], rows), "", *lines])


if __name__ == "__main__":
    main()
