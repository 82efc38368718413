"""Calls of the native CPU device while other programs use the processors.

Three comparisons: several processes with any number of threads, and the same with one thread each; a process that was
limited to one processor after its first call, and one that was started there; a process beside two busy loops, and the
same with one thread. The measure is the calls per second of all processes together. The two sides take turns, and the
ratio is the median over the rounds.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

import vkrnn
from vkrnn import reference

from . import common
from .baseline_torch import find_torch, on_torch
from .common import CROWD, THREADS, Contender, Problem, Record, Sizes, cpu_name, milliseconds, scaled_error, show, table
from .problems import Arrays

SIZES, SMOKE_SIZES = Sizes(64, 8, 128, 128), Sizes(5, 3, 7, 4)
PROCESSES, SMOKE_PROCESSES = (2, 4, 8), (2,)
BUSY_LOOPS = 2
FLOOR = 0.8
VARIABLE = "VKRNN_NUM_THREADS"

AHEAD = 0.05  # seconds between announcing a turn and its start
CONTEXT = multiprocessing.get_context("spawn")


@dataclass(frozen=True)
class Pace:
    """How long to measure, in seconds: untimed calls, then timed ones."""

    rounds: int = 5
    settle: float = 0.5
    turn: float = 2.0


SMOKE = Pace(rounds=1, settle=0.02, turn=0.1)


class Worker:
    """A process that makes calls for some time on request."""

    def __init__(self, who: str, sizes: Sizes, selector: str) -> None:
        self._end, theirs = CONTEXT.Pipe()
        self._process = CONTEXT.Process(target=_serve, args=(theirs, who, sizes, selector), daemon=True)
        self._process.start()
        theirs.close()
        self.error: float = self._end.recv()  # error of its first answer

    def begin(self, threads: int | None, begin: float, settle: float, turn: float) -> None:
        """Let it make calls from this time on with this many threads, or with any number if None."""
        self._end.send(("calls", (threads, begin, settle, turn)))

    def count(self) -> int:
        """Wait until it is done, and return how many calls ended in time."""
        counted: int = self._end.recv()
        return counted

    def keep_to(self, processor: int) -> None:
        """Limit it to one processor."""
        self._end.send(("affinity", (processor,)))
        self._end.recv()

    def close(self) -> None:
        """End the process."""
        self._end.close()
        self._process.join()


def _serve(pipe: Connection, who: str, sizes: Sizes, selector: str) -> None:
    """Make a first call, send its error, then serve requests until the pipe is closed."""
    work, error, set_threads = {"vkrnn": _own_work, "torch": _torch_work}[who](sizes, selector)
    pipe.send(error)
    while True:
        try:
            what, request = pipe.recv()
        except EOFError:
            return
        if what == "affinity":
            os.sched_setaffinity(0, set(request))
            pipe.send(None)
        else:
            threads, *times = request
            set_threads(threads)
            pipe.send(_calls(work, *times))


def _calls(work: Callable[[], object], begin: float, settle: float, turn: float) -> int:
    """Return how many calls end within the turn."""
    first, last = begin + settle, begin + settle + turn
    time.sleep(max(0.0, begin - time.monotonic()))
    count = 0
    while True:
        work()
        now = time.monotonic()  # this clock is the same in all processes
        if now >= last:
            return count
        count += now >= first


Work = tuple[
    Callable[[], object], float, Callable[[int | None], None]
]  # the call, its error, a function that sets its threads


def _own_work(sizes: Sizes, selector: str) -> Work:
    arrays, device = Arrays.draw("lstm", sizes), common.open_device(selector)

    def work() -> vkrnn.Results:
        return arrays.forward(vkrnn, device=device)

    def set_threads(threads: int | None) -> None:
        if threads is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = str(threads)

    return work, scaled_error(work().output, _ideal(arrays)), set_threads


def _torch_work(sizes: Sizes, _selector: str) -> Work:
    arrays, torch = Arrays.draw("lstm", sizes), find_torch()
    if torch is None:
        raise SystemExit("PyTorch is not installed")
    contender = on_torch(torch, arrays, gradients=False)
    answer: Mapping[str, Any] = contender.answer() if contender.answer is not None else {}

    def set_threads(threads: int | None) -> None:
        torch.set_num_threads(threads or THREADS)

    return contender.run, scaled_error(answer["output"], _ideal(arrays)), set_threads


def _ideal(arrays: Arrays) -> Any:
    return arrays.forward(reference).output


def _spin(pipe: Connection) -> None:
    """Keep a processor busy until the end is requested."""
    while not pipe.poll():
        for _ in range(100_000):
            pass


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keep this many processors busy."""
    ours, processes = [], []
    for _ in range(count):
        end, theirs = CONTEXT.Pipe()
        processes.append(CONTEXT.Process(target=_spin, args=(theirs,), daemon=True))
        processes[-1].start()
        ours.append(end)
    try:
        yield
    finally:
        for end, process in zip(ours, processes, strict=True):
            end.send(None)
            process.join()


@contextmanager
def affinity(processors: set[int]) -> Iterator[None]:
    """Limit this thread, and the processes that it starts, to these processors."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, processors)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(frozen=True)
class Side:
    """One of the two sides that take turns: processes that make calls at the same time."""

    what: str
    workers: Sequence[Worker]
    threads: int | None

    def seconds_a_call(self, pace: Pace) -> float:
        """Return the turn's length divided by the number of calls of all processes."""
        begin = time.monotonic() + AHEAD
        for worker in self.workers:
            worker.begin(self.threads, begin, pace.settle, pace.turn)
        return pace.turn / max(1, sum([worker.count() for worker in self.workers]))


@dataclass(frozen=True)
class Scenario:
    """A comparison. The first side should be nearly as fast as the second one."""

    what: str
    implementation: str
    sides: tuple[Side, Side]


class Starter:
    """Starts and stops the processes of scenarios."""

    def __init__(self, stack: ExitStack, sizes: Sizes, selector: str) -> None:
        self._stack, self._sizes, self._selector = stack, sizes, selector

    def workers(self, who: str, count: int) -> list[Worker]:
        """Start this many processes."""
        started = [Worker(who, self._sizes, self._selector) for _ in range(count)]
        for worker in started:
            self._stack.callback(worker.close)
        return started

    def at_once(self, who: str, count: int) -> Scenario:
        """Return the scenario of several processes at once."""
        workers = self.workers(who, count)
        sides = Side("own choice of threads", workers, None), Side("1 thread each", workers, 1)
        return Scenario(f"{count} processes at once", who, sides)

    def cut(self, who: str) -> Scenario:
        """Return the scenario of a process limited to one processor, and one that was started there."""
        processor = min(os.sched_getaffinity(0))
        [cut] = self.workers(who, 1)
        cut.keep_to(processor)
        with affinity({processor}):
            started = self.workers(who, 1)
        sides = Side("cut after the first call", [cut], None), Side("started there", started, None)
        return Scenario("one processor", who, sides)

    def beside_loops(self, who: str) -> Scenario:
        """Return the scenario of a process beside busy loops."""
        workers = self.workers(who, 1)
        self._stack.enter_context(busy_loops(BUSY_LOOPS))
        sides = Side("own choice of threads", workers, None), Side("1 thread", workers, 1)
        return Scenario(f"beside {BUSY_LOOPS} busy loops", who, sides)


def records_of(scenario: Scenario, times: np.ndarray[Any, Any], arrays: Arrays, device: vkrnn.Device) -> list[Record]:
    """Return the records of both sides."""
    problem = arrays.problem(device, [], gradients=False)
    own = scenario.implementation == "vkrnn"
    where = (device.name, device.driver_version) if own else (cpu_name(), "torch")
    records = []
    for side, seconds in zip(scenario.sides, times.T, strict=True):
        contender = Contender(scenario.implementation, where[0], f"{where[1]}, {side.what}", dict, None)
        named = Problem(f"lstm, {scenario.what}", problem.workload, problem.bytes, problem.flops, {}, [])
        error = max(worker.error for worker in side.workers)
        records.append(common.record_of(named, contender, error, CROWD, list(seconds)))
    return records


def checked(scenario: Scenario) -> Scenario:
    """Return the scenario if its processes' answers are right."""
    worst = max(worker.error for side in scenario.sides for worker in side.workers)
    if worst > common.CHECK_TOLERANCE:
        raise common.WrongAnswerError(f"{scenario.implementation}, {scenario.what}: output is off by {worst:.1e}")
    return scenario


def measure(scenario: Scenario, pace: Pace, progress: tqdm[Any]) -> np.ndarray[Any, Any]:
    """Return the seconds per call of both sides, [rounds, 2]."""
    progress.set_description(f"{scenario.implementation}, {scenario.what}")
    times = []
    for _ in range(pace.rounds):
        times.append([side.seconds_a_call(pace) for side in scenario.sides])
        progress.update()
    return np.array(times)


def main() -> None:
    """Measure, print a table, say which floors were reached."""
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--torch", action="store_true", help="PyTorch, too")
    parser.set_defaults(rounds=Pace.rounds)
    options = parser.parse_args()
    device = common.open_native(options.device)
    pace = SMOKE if options.smoke else Pace(rounds=options.rounds)
    arrays = Arrays.draw("lstm", SMOKE_SIZES if options.smoke else SIZES)
    counts = SMOKE_PROCESSES if options.smoke else PROCESSES
    makers: list[Callable[[Starter, str], Scenario]] = [
        *(lambda starter, who, count=count: starter.at_once(who, count) for count in counts),  # type: ignore[misc]
        Starter.cut,
        Starter.beside_loops,
    ]
    names = ["vkrnn", "torch"] if options.torch else ["vkrnn"]
    settings = common.settings()
    rows, lines = [], []
    with tqdm(total=len(names) * len(makers) * pace.rounds, unit="round", disable=None, leave=False) as progress:
        for who in names:
            for make in makers:
                with ExitStack() as stack:
                    scenario = checked(make(Starter(stack, arrays.sizes, str(device.index)), who))
                    times = measure(scenario, pace, progress)
                records = records_of(scenario, times, arrays, device)
                common.write(records, options.output)
                ratio = float(np.median(times[:, 1] / times[:, 0]))
                sides = (
                    f"{side.what}: {milliseconds(r.median)}" for side, r in zip(scenario.sides, records, strict=True)
                )
                rows.append([scenario.what, who, *sides, f"{ratio:.2f}", f"{records[0].error:.1e}"])
                if who == "vkrnn":
                    what = f"{scenario.what}, calls a second beside {scenario.sides[1].what}"
                    lines.append(common.verdict(what, ratio, FLOOR, "times", at_least=True))
    show(
        [
            f"{device!r}, {cpu_name()}",
            *settings,
            f"lstm {arrays.sizes}, time a call of all processes together, medians",
            "",
        ]
    )
    show([*table(["scenario", "who", "one side", "other side", "ratio", "error"], rows), "", *lines])


if __name__ == "__main__":
    main()
