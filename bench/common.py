"""Common parts of the benchmarks: the record, the interleaved runner, the table, the command line."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

import vkrnn

Floats = npt.NDArray[np.float32]

HOST_CALL = "host call"  # wall time of the call in Python, with host arrays or tensors
DEVICE = "device timestamps"  # device time without uploads and downloads
RESIDENT_BATCH = "call in a batch"  # wall time of a batch of calls on device arrays with one wait, per call
STEP = "step"  # wall time of a sequence computed step by step, per step
CROWD = "time a call, all processes"  # wall time per call, where several processes make calls
GRAPH = "graph replay"  # between two CUDA events, per replay of a captured call

# Wrong answers have far larger errors, and so do TF32 and half precision (3e-4), which must not pass as float32.
CHECK_TOLERANCE = 1e-4

THREADS = len(os.sched_getaffinity(0))

# Environment variables that change a contender's speed. A record lists those that are set.
SETTINGS = (
    "VKRNN_NUM_THREADS",
    "VKRNN_CPU_TARGET",
    "VKRNN_FLOAT32",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_L2_SIZE",
    "MKL_NUM_THREADS",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
    "ATEN_CPU_CAPABILITY",
    "NPY_DISABLE_CPU_FEATURES",
)


@dataclass(frozen=True)
class Record:
    """One measurement, a line of JSON. Times are in seconds."""

    commit: str
    implementation: str  # "vkrnn", "vkrnn.torch", "numpy", "torch", "onnxruntime"
    device: str
    driver: str  # driver, or a library and its version
    op: str  # "lstm", "lstm + gradients", ...
    workload: str  # "T=64 N=32 I=256 H=256"
    measure: str  # HOST_CALL, DEVICE, ...
    median: float
    p10: float
    p90: float
    n: int
    bytes: int  # of the arguments and results
    flops: float  # of the matrix products
    checked: bool  # compared with the float64 reference before timing
    error: float | None  # then max |a - b| / max(1, max |b|) of the worst result
    alone: bool = field(default=False, kw_only=True)  # whether the contender had a process to itself


@dataclass(frozen=True)
class Sizes:
    """Time steps, batch, input and hidden features, and the number of layers."""

    T: int
    N: int
    I: int
    H: int
    layers: int = 1

    def __str__(self) -> str:
        """Return the record's ``workload``."""
        layers = f" L={self.layers}" if self.layers > 1 else ""
        return f"T={self.T} N={self.N} I={self.I} H={self.H}{layers}"


@dataclass
class Contender:
    """One implementation of one operation on one workload.

    `run` does the work once and returns the seconds by measure. `answer` does the work once and returns the results to
    check by name. It is None for a contender that computes less than the whole operation.
    """

    implementation: str
    device: str
    driver: str
    run: Callable[[], Mapping[str, float]]
    answer: Callable[[], Mapping[str, npt.NDArray[Any]]] | None


@dataclass(frozen=True)
class Problem:
    """An operation on a workload, its right answer, and the contenders."""

    op: str
    workload: str
    bytes: int
    flops: float
    ideal: Mapping[str, npt.NDArray[Any]]  # float64 if computed
    contenders: Sequence[Contender]


@dataclass(frozen=True)
class Pace:
    """How long to measure, in seconds.

    Every contender first works for `warm_up`, because an idle GPU has a low clock rate. Then, in each of `rounds`,
    every contender has a turn: untimed calls for `settle`, until threads and caches of the previous contender have made
    room, and then timed calls for `turn`, at least one and at most `most`.
    """

    warm_up: float = 0.5
    rounds: int = 7
    settle: float = 0.03
    turn: float = 0.15
    most: int = 50


SMOKE = Pace(warm_up=0.0, rounds=1, settle=0.0, turn=0.0)


class WrongAnswerError(RuntimeError):
    """A contender's answer differs from the reference, so its time is meaningless."""


def scaled_error(got: npt.NDArray[Any], ideal: npt.NDArray[Any]) -> float:
    """Return max |a - b| / max(1, max |b|); infinity where `got` is not finite or of another shape."""
    if got.shape != ideal.shape or not np.isfinite(got).all():
        return float("inf")
    return float(np.abs(got - ideal).max() / max(1.0, float(np.abs(ideal).max())))


def check(problem: Problem, contender: Contender) -> float | None:
    """Return the contender's worst error, or raise `WrongAnswerError` if it exceeds rounding."""
    if contender.answer is None:
        return None
    answer = contender.answer()
    errors = {name: scaled_error(answer[name], ideal) for name, ideal in problem.ideal.items()}
    name, worst = max(errors.items(), key=lambda item: item[1])
    if worst > CHECK_TOLERANCE:
        who = f"{contender.implementation} on {contender.device}"
        raise WrongAnswerError(f"{who}, {problem.op} {problem.workload}: {name} is off by {worst:.1e}")
    return worst


def work_for(seconds: float, run: Callable[[], Mapping[str, float]]) -> None:
    """Let a contender work for some time."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        run()


def timed_turn(pace: Pace, run: Callable[[], Mapping[str, float]]) -> Iterator[Mapping[str, float]]:
    """Yield the seconds by measure of each timed call of a contender's turn."""
    work_for(pace.settle, run)
    end = time.perf_counter() + pace.turn
    for _ in range(pace.most):
        yield run()
        if time.perf_counter() >= end:
            return


def measure(problem: Problem, pace: Pace, after_round: Callable[[], object] = lambda: None) -> list[Record]:
    """Check every contender of the problem, then time them all in turns."""
    contenders = problem.contenders
    errors = [check(problem, contender) for contender in contenders]
    for contender in contenders:
        work_for(pace.warm_up, contender.run)
    samples: list[dict[str, list[float]]] = [{} for _ in contenders]
    for _ in range(pace.rounds):
        for contender, collected in zip(contenders, samples, strict=True):
            for sample in timed_turn(pace, contender.run):
                for name, seconds in sample.items():
                    collected.setdefault(name, []).append(seconds)
        after_round()
    return [
        record_of(problem, contender, error, name, seconds)
        for contender, error, collected in zip(contenders, errors, samples, strict=True)
        for name, seconds in collected.items()
    ]


def record_of(
    problem: Problem, contender: Contender, error: float | None, name: str, seconds: Sequence[float]
) -> Record:
    """Return the record of a contender's samples of one measure."""
    p10, median, p90 = np.percentile(seconds, [10, 50, 90])
    return Record(
        commit=commit(),
        implementation=contender.implementation,
        device=contender.device,
        driver=contender.driver,
        op=problem.op,
        workload=problem.workload,
        measure=name,
        median=float(median),
        p10=float(p10),
        p90=float(p90),
        n=len(seconds),
        bytes=problem.bytes,
        flops=problem.flops,
        checked=error is not None,
        error=error,
    )


def measure_all(problems: Iterable[Problem], count: int, pace: Pace, output: Path | None) -> Iterator[list[Record]]:
    """Measure the problems in order, and write each record at once."""
    with tqdm(total=count * pace.rounds, unit="round", disable=None, leave=False) as progress:
        for problem in problems:
            progress.set_description(f"{problem.op} {problem.workload}")
            records = measure(problem, pace, progress.update)
            write(records, output)
            yield records


def groups_of(path: Path) -> list[list[Record]]:
    """Return the records of a file by operation, workload and whether contenders were alone."""
    groups: dict[tuple[str, str, bool], list[Record]] = {}
    for line in path.read_text().splitlines():
        record = Record(**json.loads(line))
        groups.setdefault((record.op, record.workload, record.alone), []).append(record)
    return list(groups.values())


def write(records: Iterable[Record], output: Path | None) -> None:
    """Append records to a file, if one is given."""
    if output is not None:
        with output.open("a") as file:
            file.writelines(json.dumps(asdict(record)) + "\n" for record in records)


_commit: list[str] = []


def commit() -> str:
    """Return the tree's commit, with ``-dirty`` if there are changes."""
    if not _commit:
        command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        try:
            done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
            _commit.append(done.stdout.strip())
        except (OSError, subprocess.CalledProcessError):
            _commit.append("unknown")
    return _commit[0]


def cpu_name() -> str:
    """Return the processor's name and the number of cores this process may use."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        name = models[0] if models else name
    return f"{name}, {THREADS} cores"


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that one call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def show(lines: Iterable[str] = ("",)) -> None:
    """Write lines to standard output."""
    for line in lines:
        sys.stdout.write(line + "\n")
    sys.stdout.flush()


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the aligned lines of a Markdown table; the first column to the left, the others to the right."""
    cells = [list(header), *map(list, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    first, *others = ([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])] for row in cells)
    rule = [":" + "-" * (widths[0] - 1), *("-" * (width - 1) + ":" for width in widths[1:])]
    return [f"| {' | '.join(row)} |" for row in (first, rule, *others)]


def milliseconds(seconds: float) -> str:
    """Return a time with three digits."""
    value, unit = (seconds * 1e3, "ms") if seconds >= 1e-3 else (seconds * 1e6, "us")
    return f"{value:.{max(0, 2 - len(str(int(value))) + 1)}f} {unit}"


def verdict(what: str, reached: float, wanted: float, unit: str, *, at_least: bool) -> str:
    """Return a line that says whether a floor was reached. Floors are reported, never asserted."""
    good = reached >= wanted if at_least else reached <= wanted
    bound = "at least" if at_least else "at most"
    return f"{'reached    ' if good else 'FALLS SHORT'}  {what}: {reached:.3g} {unit}, wanted {bound} {wanted:g} {unit}"


def arguments(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", help="index in vkrnn.devices() or a part of the name (default: the best)")
    parser.add_argument("--output", type=Path, help="append the records to this file, one JSON line each")
    parser.add_argument("--rounds", type=int, default=Pace.rounds, help="turns of each contender (%(default)s)")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, one round, to test the script")
    return parser


def pace_of(options: argparse.Namespace) -> Pace:
    """Return how long to measure."""
    return SMOKE if options.smoke else Pace(rounds=options.rounds)


def open_device(selector: str | None) -> vkrnn.Device:
    """Return the device of ``--device``, or the default device."""
    if selector is None:
        return vkrnn.default_device()
    return vkrnn.Device(int(selector) if selector.isdecimal() else selector)


def is_native(device: vkrnn.Device) -> bool:
    """Return whether this is the native CPU device; Vulkan has devices of type cpu, too."""
    return device.backend == "native"


def open_native(selector: str | None) -> vkrnn.Device:
    """Return the device of ``--device`` or the native CPU device; exit if it is another kind of device."""
    if selector is None:
        found = [index for index, device in enumerate(vkrnn.devices()) if is_native(device)]
        selector = str(found[0]) if found else None
    device = open_device(selector)
    if not is_native(device):
        raise SystemExit(f"{device!r} is not the native CPU device, and this benchmark is about that one alone")
    return device


def settings() -> list[str]:
    """Return a line for each environment variable that changes a contender's speed."""
    return [f"set in the environment: {name}={os.environ[name]}" for name in SETTINGS if name in os.environ]
