"""Compares the speed of two builds of vkrnn, such as before and after a change. They take turns.

A build is a folder that contains the package with its extension module: the target of ``pip install --target``, or
``python/`` of a checkout. Each build has a process of its own. Turns alternate within each row. On the native CPU
device, a row is the wall time of calls with NumPy arrays, and on other devices that of a batch of calls on resident
arrays. Both builds must agree with `vkrnn.reference` on the first steps, and have the interface that this program uses.
If terminated, it prints the rows that it has measured.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

import vkrnn
from vkrnn import reference

from .cells import CPU_SIZES, parse_sizes
from .common import (
    HOST_CALL,
    RESIDENT_BATCH,
    Pace,
    Sizes,
    is_native,
    open_device,
    scaled_error,
    show,
    table,
    timed_turn,
    verdict,
    work_for,
)
from .gpu import DTYPES, PASSES, TOLERANCE, Batches, parse_option
from .gpu_contenders import on_vkrnn as on_resident
from .problems import GATES, Arrays
from .problems import on_vkrnn as on_numpy

CHECKED_STEPS = 4
PACE = Pace(warm_up=0.2)
MEAN, WORST = 0.98, 0.95  # wanted of the old time : the new one
ROOT = Path(__file__).parents[1]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add("old", help="folder with the package before a change")
    add("new", help="folder with the package after it")
    add("--device", help="index in vkrnn.devices() or a part of the name (default: the best)")
    add("--options", nargs="*", type=parse_option, default=[], metavar="NAME=VALUE", help="of the device: float32=tf32")
    add("--dtype", choices=DTYPES, default="float32", help="dtype of all arrays (%(default)s)")
    add("--cells", nargs="+", choices=list(GATES), default=list(GATES), help="cells to measure (all)")
    add("--passes", nargs="+", choices=PASSES, default=PASSES, help="which passes (both)")
    sizes = "workloads (those of bench.cells on a CPU)"
    add("--sizes", nargs="+", type=parse_sizes, default=CPU_SIZES, metavar="T,N,I,H", help=sizes)
    add("--rounds", type=int, default=5, help="turns of each build (%(default)s)")
    add("--serve", action="store_true", help=argparse.SUPPRESS)  # in the process of a build
    return made


@dataclass(frozen=True)
class Row:
    """A cell on a workload, in one pass."""

    cell: str
    sizes: Sizes
    gradients: bool

    @property
    def op(self) -> str:
        """The operation's name in tables."""
        return f"{self.cell} + gradients" if self.gradients else self.cell


def rows_of(options: argparse.Namespace) -> list[Row]:
    """Return the rows of the table."""
    chosen = itertools.product(options.sizes, options.cells, options.passes)
    return [Row(cell, sizes, name == "gradients") for sizes, cell, name in chosen]


# In the process of a build


def opened(options: argparse.Namespace) -> vkrnn.Device:
    """Open the device with the options."""
    found = open_device(options.device)
    return vkrnn.Device(found.index, **dict(options.options)) if options.options else found


def check(arrays: Arrays, device: vkrnn.Device, *, gradients: bool) -> None:
    """Compare the first steps with the reference; exit if they differ by more than rounding."""
    short = arrays.first(CHECKED_STEPS)
    ideal = short.answer(reference, gradients=gradients)
    found = short.answer(vkrnn, gradients=gradients, device=device)
    kind = "tf32" if device.float32 == "tf32" else str(arrays.source_gradient.dtype)
    for name, right in ideal.items():
        error = scaled_error(found[name].astype(right.dtype), right)
        if error > TOLERANCE.get(kind, TOLERANCE["float32"]):
            raise SystemExit(f"bench.builds: {arrays.cell} {arrays.sizes}, {name}: off by {error:.1e}")


def prepared(row: Row, device: vkrnn.Device, dtype: str) -> Callable[[], float]:
    """Return a function that makes the row's calls for a turn and returns the seconds of one."""
    arrays = Arrays.draw(row.cell, row.sizes, dtype=dtype)
    check(arrays, device, gradients=row.gradients)
    if is_native(device):
        run, measure = on_numpy(arrays, device, gradients=row.gradients).run, HOST_CALL
    else:
        work = on_resident("vkrnn", arrays, device).work(arrays, row.gradients)
        run, measure = Batches(work, RESIDENT_BATCH).run, RESIDENT_BATCH
    work_for(PACE.warm_up, run)
    return lambda: statistics.median(seconds[measure] for seconds in timed_turn(PACE, run))


def serve(options: argparse.Namespace) -> None:
    """Read row numbers from stdin, and print the seconds of one turn of each row."""
    device, rows = opened(options), rows_of(options)
    show([f"{device!r} of {Path(vkrnn.__file__).parent}"])
    turn: tuple[int, Callable[[], float]] | None = None
    for number in map(int, sys.stdin):
        if turn is None or turn[0] != number:
            turn = number, prepared(rows[number], device, options.dtype)
        show([repr(turn[1]())])


# In the process that was started


class Build:
    """The process of a build."""

    def __init__(self, folder: str, arguments: Sequence[str]) -> None:
        """Start it, and wait until it is ready."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.builds", *arguments, "--serve"],
            env={**os.environ, "PYTHONPATH": str(Path(folder).resolve())},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that Ctrl-C ends this program alone, which then ends the process
        )
        self._orders: Any = self._process.stdin
        self._answers: Any = self._process.stdout
        self.title = self._read()

    def turn(self, row: int) -> float:
        """Return the seconds of a call of the row."""
        self._orders.write(f"{row}\n")
        self._orders.flush()
        return float(self._read())

    def _read(self) -> str:
        line: str = self._answers.readline()
        if not line:  # it has printed why
            raise SystemExit(self._process.wait() or 1)
        return line.strip()

    def stop(self) -> None:
        """End the process, even within a turn."""
        self._process.kill()
        self._process.wait()


def main() -> None:
    """Measure and print a table."""
    options = parser().parse_args()
    if options.serve:
        serve(options)
        return
    builds = [Build(folder, sys.argv[1:]) for folder in (options.old, options.new)]
    show([f"{name}: {build.title}" for name, build in zip(("old", "new"), builds, strict=True)])
    lines, ratios = [], []
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        for number, row in enumerate(tqdm(rows_of(options), unit="row", disable=None, leave=False)):
            turns = [[build.turn(number) for build in builds] for _ in range(options.rounds)]
            old, new = (statistics.median(seconds) for seconds in zip(*turns, strict=True))
            ratios.append(old / new)
            lines.append([row.op, str(row.sizes), f"{old * 1e6:.1f}", f"{new * 1e6:.1f}", f"{old / new:.3f}"])
    except KeyboardInterrupt:
        if not ratios:
            raise
        show(["Interrupted: the rows after the last one are left out."])
    finally:
        for build in builds:
            build.stop()
    show(["", *table(["operation", "workload", "old, us", "new, us", "old : new"], lines), ""])
    for what, reached, wanted in (
        ("geometric mean", statistics.geometric_mean(ratios), MEAN),
        ("worst row", min(ratios), WORST),
    ):
        show([verdict(f"old time : new time, {what}", reached, wanted, "times", at_least=True)])


if __name__ == "__main__":
    main()
