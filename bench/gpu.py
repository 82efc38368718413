"""The three cells on a GPU: vkrnn on device arrays and PyTorch with cuDNN, in turns within one run.

A turn is a batch of calls with one synchronization at its end. ``lstm`` is the forward call, and ``lstm + gradients`` a
training forward call and the gradients of input, weights, biases and initial states. Before the timing, all answers are
compared with `vkrnn.reference` on the first steps, and with PyTorch in float64 on all steps. If it is interrupted or
terminated, it prints what it has measured.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

import vkrnn
from vkrnn import reference

from . import cells, common
from .common import DEVICE, HOST_CALL, RESIDENT_BATCH, Contender, Pace, Problem, Record, Sizes, show, timed
from .gpu_contenders import Entry, Torch, Work, on_vkrnn, on_vkrnn_from_numpy, torch_there
from .gpu_report import (
    BIDIRECTIONAL,
    MODULE,
    MODULE_TF32,
    OPTIONS,
    PLAIN,
    STRICT,
    TORCH,
    GpuRecord,
    report,
    wrong,
)
from .problems import Arrays

SIZES = tuple(
    Sizes(T, N, H, H)
    for T, N, H in (
        (128, 1, 128),
        (512, 1, 256),
        (128, 32, 128),
        (1000, 8, 256),
        (256, 64, 512),
        (100, 64, 1024),
        (1024, 16, 768),
        (256, 128, 1024),
        (64, 64, 2048),
        (50, 1, 1024),
        (3047, 6, 40),
    )
)
SMOKE_SIZES = (Sizes(5, 3, 4, 4),)

PASSES = ("forward", "gradients")
BATCH_SECONDS = 0.06
TURN_SECONDS = 0.08  # length of a batch with the calls before and after it
MOST_CALLS = 2000  # in a batch
MIN_ROUNDS = 3
WARM_UP = 0.45

DTYPES = ("float32", "float16", "bfloat16")
# The next three have a key for each dtype, and "tf32" for float32 calls that round both operands of products.
# The error of rounding alone, relative to the largest value of a result.
ROUNDING = {"float32": 2**-24, "tf32": 2 * 2**-11, "float16": 2**-11, "bfloat16": 2**-8}
# The largest error allowed, as a multiple of cuDNN's: in float32 of cuDNN without TF32, else of cuDNN in the same type.
WORSE = {"float32": 3.0, "tf32": 1.5, "float16": 1.25, "bfloat16": 1.25}
# Largest error if there is no cuDNN to compare with.
TOLERANCE = {"float32": 1e-5, "tf32": 5e-3, "float16": 2e-2, "bfloat16": 1e-1}


class Errors(NamedTuple):
    """The worst of max |a - b| / max |b| over the results."""

    output: float  # against the reference on the first steps
    gradients: float  # the same for gradients; 0 if there are none
    whole: float  # all results and steps against PyTorch in float64; without PyTorch 0 if finite


class Batches:
    """Timed batches of a contender's work. The time of a batch decides how many calls the next one has."""

    def __init__(self, work: Work, measure: str) -> None:
        """Begin with a single call."""
        self._work, self._measure = work, measure
        self.calls = 1

    def run(self) -> dict[str, float]:
        """Return the seconds of a call."""
        work, calls = self._work, self.calls
        work.wait()
        work.call()
        work.wait()

        def batch() -> None:
            for _ in range(calls):
                work.call()
            work.wait()

        seconds = timed(batch) / calls
        self.calls = max(1, min(MOST_CALLS, round(BATCH_SECONDS / seconds)))
        more = {DEVICE: work.device_seconds()} if work.device_seconds else {}
        return {self._measure: seconds, **more}


def error(got: Any, ideal: npt.NDArray[Any]) -> float:
    """Return max |a - b| / max |b|; infinity where `got` is not finite."""
    if got.shape != ideal.shape:
        return float("inf")
    off = np.asarray(got).astype(np.float64)
    off -= ideal
    found = max(off.max(), -off.min()) / (max(ideal.max(), -ideal.min()) or 1.0)
    return float(found) if np.isfinite(found) else float("inf")


def worst(answer: Mapping[str, Any], ideal: Mapping[str, npt.NDArray[Any]], *, of_gradients: bool) -> float:
    """Return the worst error of the output, or of the gradients."""
    names = [name for name in answer if (name != "output") == of_gradients]
    return max((error(answer[name], ideal[name]) for name in names), default=0.0)


class Judge:
    """The right answers of a workload: the reference's on the first steps, and PyTorch's in float64 on all steps."""

    def __init__(self, torch: Torch | None, steps: int) -> None:
        """Store PyTorch, which may be missing, and the number of steps that the reference computes."""
        self._torch, self._steps = torch, steps
        self._of_reference: dict[int, tuple[Arrays, Mapping[str, npt.NDArray[Any]]]] = {}

    def forget(self) -> None:
        """Drop the reference's answers, which are kept because both passes use them."""
        self._of_reference.clear()

    def errors(self, works: Mapping[Entry, Work], *, gradients: bool) -> dict[Entry, Errors]:
        """Return the errors of each contender's answer."""
        found: dict[Entry, Errors] = {}
        whole: dict[int, Mapping[str, npt.NDArray[Any]]] = {}
        for entry, work in works.items():
            short, first = self._first(entry.arrays)
            own = entry.work(short, gradients).answer()
            answer = work.answer()
            ideal: Mapping[str, npt.NDArray[Any]]
            if self._torch is None or entry.arrays.flags:  # PyTorch lacks these options
                ideal = {name: np.asarray(array).astype(np.float64) for name, array in answer.items()}
            else:
                key = id(entry.arrays)
                if key not in whole:
                    double = self._torch.entry("torch, float64", entry.arrays, dtype="float64")
                    whole[key] = double.work(entry.arrays, gradients).answer()
                ideal = whole[key]
            found[entry] = Errors(
                worst(own, first, of_gradients=False),
                worst(own, first, of_gradients=True),
                max(worst(answer, ideal, of_gradients=of_gradients) for of_gradients in (False, True)),
            )
        return found

    def _first(self, arrays: Arrays) -> tuple[Arrays, Mapping[str, npt.NDArray[Any]]]:
        key = id(arrays)
        if key not in self._of_reference:
            short = arrays.first(self._steps)
            self._of_reference[key] = (short, short.answer(reference, gradients=True))
        return self._of_reference[key]


def allowed_errors(kind: str, yardstick: Errors | None) -> Errors:
    """Return vkrnn's error limits from cuDNN's errors; `kind` is a key of `ROUNDING`."""
    if yardstick is None:
        return Errors(*[TOLERANCE[kind]] * 3)
    return Errors(*(max(WORSE[kind] * own, ROUNDING[kind]) for own in yardstick))


def parse_option(text: str) -> tuple[str, str | int]:
    """Return the name and the value of a device's option, ``name=value``."""
    name, _, value = text.partition("=")
    if not (name and value):
        raise argparse.ArgumentTypeError(f"expected option=value, got {text!r}")
    return name, int(value) if value.isdecimal() else value


def parse_contender(text: str) -> tuple[str, dict[str, str | int]]:
    """Return the label and the device's options of ``"label: schedule=tiles gemm=tiled lanes=8"``."""
    label, colon, rest = text.partition(":")
    try:
        options = dict(map(parse_option, rest.split()))
    except argparse.ArgumentTypeError:
        options = {}
    if not (label.strip() and colon and options):
        raise argparse.ArgumentTypeError(f'expected "label: option=value ...", got {text!r}')
    return label.strip(), options


def parse_sizes(text: str) -> Sizes:
    """Return the workload of ``T,N,H``; I = H."""
    try:
        T, N, H = map(int, text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected T,N,H, got {text!r}") from None
    return Sizes(T, N, H, H)


class Bench:
    """A run: contenders and times."""

    def __init__(self, options: argparse.Namespace, device: vkrnn.Device, torch: Torch | None) -> None:
        """Open the devices with forced strategies, and note the missing ones."""
        self._options, self._device, self._torch = options, device, torch
        self._judge = Judge(torch, options.check_steps)
        self._ends = time.perf_counter() + options.seconds if options.seconds else float("inf")
        self.left_out: list[str] = []
        self._devices = {PLAIN: device}
        for label, fixed in options.vkrnn:
            self._force(f"{PLAIN}, {label}", fixed)

    def _force(self, name: str, fixed: Mapping[str, Any]) -> None:
        try:
            options = dict(fixed)
            self._devices[name] = vkrnn.Device(options.pop("device", self._device.index), **options)
        except (TypeError, ValueError) as reason:
            self.left_out.append(f"{name} is skipped: {reason}")

    def entries(self, arrays: Arrays) -> list[Entry]:
        """Return the contenders of a row, with cuDNN without TF32, whose answer is needed even if it is not timed."""
        dtype, transfers = self._options.dtype, self._options.transfers
        if self._options.options:
            both = Arrays.draw(arrays.cell, arrays.sizes, dtype=dtype, states=True, bidirectional=True)
            variants = {PLAIN: arrays, OPTIONS: arrays.with_options(), BIDIRECTIONAL: both}
            return [on_vkrnn(name, variant, self._device) for name, variant in variants.items()]
        if transfers:
            found = [
                on_vkrnn_from_numpy(PLAIN, arrays, self._device, weights_there=True),
                on_vkrnn_from_numpy(f"{PLAIN}, weights too", arrays, self._device, weights_there=False),
            ]
        else:
            found = [on_vkrnn(name, arrays, device) for name, device in self._devices.items()]
        names = [TORCH, STRICT] if dtype == "float32" else [TORCH]
        if self._torch is not None:
            found += [self._torch.entry(name, arrays, dtype=dtype, transfers=transfers) for name in names]
            if self._options.modules:
                names = [MODULE, MODULE_TF32] if dtype == "float32" else [MODULE]
                found += [self._torch.entry(name, arrays, dtype=dtype) for name in names]
        return found

    def rows(self) -> Iterator[list[GpuRecord]]:
        """Measure everything. The remaining time is divided among the remaining rows."""
        options = self._options
        left = len(options.sizes) * len(options.cells) * len(options.passes)
        with tqdm(total=left, unit="row", disable=None, leave=False) as progress:
            for sizes, cell in itertools.product(options.sizes, options.cells):
                if time.perf_counter() > self._ends:
                    self.left_out.append(f"{cell} {sizes} is left out: {options.seconds:g} s are over.")
                    continue
                arrays = Arrays.draw(cell, sizes, dtype=options.dtype, states=not options.transfers)
                entries = self.entries(arrays)
                for gradients in (name == "gradients" for name in options.passes):
                    op = f"{cell} + gradients" if gradients else cell
                    progress.set_description(f"{op} {sizes}")
                    problem = Problem(op, str(sizes), *arrays.cost(self._device, gradients=gradients), {}, [])
                    seconds = (self._ends - time.perf_counter()) / left
                    yield self._row(problem, entries, seconds, gradients=gradients)
                    left -= 1
                    progress.update()
                self._judge.forget()

    def _work(self, entry: Entry, problem: Problem, *, gradients: bool) -> Work | None:
        try:
            return entry.work(entry.arrays, gradients)
        except NotImplementedError as reason:  # a forced strategy that does not fit
            self.left_out.append(f"{entry.name} is skipped for {problem.op} {problem.workload}: {reason}")
            return None

    def _row(self, problem: Problem, entries: Sequence[Entry], seconds: float, *, gradients: bool) -> list[GpuRecord]:
        options, ends = self._options, time.perf_counter() + seconds
        found = {entry: self._work(entry, problem, gradients=gradients) for entry in entries}
        works = {entry: work for entry, work in found.items() if work is not None}
        errors = self._judge.errors(works, gradients=gradients)
        yardsticks = {entry.name: errors[entry] for entry in works if entry.name in (TORCH, STRICT)}
        measure = HOST_CALL if options.transfers else RESIDENT_BATCH
        turns = {e: Batches(work, measure) for e, work in works.items() if e.name != STRICT or options.strict}
        pace = common.pace_of(options)
        if not options.smoke:
            spare = ends - time.perf_counter() - WARM_UP * len(turns)
            rounds = int(min(spare / (len(turns) * TURN_SECONDS), options.rounds))
            pace = Pace(WARM_UP, max(MIN_ROUNDS, rounds), settle=0.0, turn=0.0)
        contenders = [Contender(e.name, e.device, e.driver, batches.run, None) for e, batches in turns.items()]
        records = common.measure(replace(problem, contenders=contenders), pace)
        by_name = {entry.name: entry for entry in turns}

        def complete(record: Record) -> GpuRecord:
            entry = by_name[record.implementation]
            own = errors[entry]
            plans = entry.arrays.plans(entry.own, gradients=gradients) if entry.own else []
            rounds = any(plan.float32 == "tf32" for plan in plans)
            kind = "tf32" if rounds else options.dtype
            yardstick = yardsticks.get(STRICT if kind == "float32" else TORCH)
            allowed = allowed_errors(kind, yardstick)._asdict() if entry.own else {}
            return GpuRecord(
                **asdict(record) | {"checked": True, "error": max(own)},
                dtype=options.dtype,
                seconds_a_step=record.median / entry.arrays.sizes.T,
                calls=turns[entry].calls,
                strategy=[plan.strategy for plan in plans],
                errors=own._asdict(),
                allowed=allowed,
                correct=all(error <= allowed.get(name, sys.float_info.max) for name, error in own._asdict().items()),
                float32="tf32" if rounds else "ieee",
            )

        return [complete(record) for record in records]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = cells.arguments(__doc__ or "")
    add = made.add_argument
    add("--sizes", nargs="+", type=parse_sizes, metavar="T,N,H", help="workloads, I = H (the eleven of the table)")
    add("--passes", nargs="+", choices=PASSES, default=PASSES, help="which passes (both)")
    add("--dtype", choices=DTYPES, default="float32", help="dtype of all tensors (%(default)s)")
    add("--seconds", type=float, help="length of the whole run; rows get at most --rounds rounds and at least 3")
    add("--strict", action="store_true", help="time PyTorch without TF32, too; its answers are compared in any case")
    add("--check-steps", type=int, default=16, help="how many steps vkrnn.reference computes (%(default)s)")
    add("--torch", choices=["cuda", "cpu"], default="cuda", help="where PyTorch runs; cpu is for testing the script")
    add(
        "--vkrnn",
        action="append",
        type=parse_contender,
        default=[],
        metavar='"LABEL: float32=tf32 schedule=tiles"',
        help="vkrnn once more, with these options of its device, or on another one (device=cuda:0); may be repeated",
    )
    add("--modules", action="store_true", help="the modules of vkrnn.torch on PyTorch's tensors, too")
    what = made.add_mutually_exclusive_group()
    add = what.add_argument
    add("--transfers", action="store_true", help="from NumPy arrays to NumPy arrays; PyTorch from and to pinned memory")
    add("--options", action="store_true", help="vkrnn alone: what options and a second direction cost")
    add("--report", type=Path, metavar="FILE", help="measure nothing, print the tables of these records")
    return made


def main() -> None:
    """Measure, print the tables, and say which floors were reached. Exit with 1 if an answer was wrong."""
    made = parser()
    options = made.parse_args()
    if options.vkrnn and (options.transfers or options.options):
        made.error("--vkrnn goes with resident arrays, without --transfers and --options")
    if options.report:
        show(report([GpuRecord(**json.loads(line)) for line in options.report.read_text().splitlines()]))
        return
    options.sizes = options.sizes or (SMOKE_SIZES if options.smoke else SIZES)
    device = common.open_device(options.device)
    torch = "PyTorch does not have these options and takes no part." if options.options else torch_there(options.torch)
    bench = Bench(options, device, torch if isinstance(torch, Torch) else None)
    records: list[GpuRecord] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for row in bench.rows():
            common.write(row, options.output)
            records += row
    except KeyboardInterrupt:
        bench.left_out.append("Interrupted: the rows after the last one are left out.")
    show([repr(device), *common.settings()])
    for name, driver in dict.fromkeys((record.implementation, record.driver) for record in records):
        show([f"{name}: {driver}"])
    show([*([torch] if isinstance(torch, str) else []), *bench.left_out, "", *report(records)])
    if wrong(records):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
