"""The first call of a fresh process: with empty caches on disk, then with those that it left.

Timed from just before the first operation to its return, so that opening the device counts; importing vkrnn is timed
by itself. ``lstm + gradients`` is the sum of two first calls, a training forward call and the gradients.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

import vkrnn

from . import cells, common
from .common import COLD, IMPORT, SMOKE, WARM, Contender, Problem, Record, Sizes, milliseconds, show, table
from .problems import Arrays

FLOORS = {COLD: 2.0, WARM: 0.3}  # seconds
ROUNDS = 3
ANSWER = "answer.npz"

# A program of its own: importing this module imports vkrnn.
PROGRAM = """
import time
start = time.perf_counter()
import vkrnn
seconds = time.perf_counter() - start
from bench import first_call
first_call.child(seconds)
"""


def child(imported: float) -> None:
    """Make the first call of this process, leave the answer in the folder of the caches, and print the times."""
    cell, sizes, gradients, folder = json.loads(sys.argv[1])
    arrays = Arrays.draw(cell, Sizes(*sizes))
    start = time.perf_counter()
    answer: dict[str, Any] = arrays.answer(vkrnn, gradients=gradients)
    called = time.perf_counter() - start
    np.savez(Path(folder) / ANSWER, **answer)
    show([json.dumps([imported, called])])


def _process(arrays: Arrays, selector: str | None, folder: str, *, gradients: bool) -> tuple[float, float]:
    """Return the seconds that the import and the first call take in a process with its caches in that folder."""
    own = {"VKRNN_CACHE_DIR": folder, "MESA_SHADER_CACHE_DIR": folder}
    if selector is not None:
        own["VKRNN_DEVICE"] = selector
    sizes = arrays.sizes
    told = json.dumps([arrays.cell, [sizes.T, sizes.N, sizes.I, sizes.H], gradients, folder])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, told],
        cwd=Path(__file__).parents[1],
        env=os.environ | own,
        stdout=subprocess.PIPE,
        check=True,
    )
    imported, called = json.loads(done.stdout)
    return imported, called


def _contender(arrays: Arrays, device: vkrnn.Device, selector: str | None, *, gradients: bool) -> Contender:
    def run() -> dict[str, float]:
        with TemporaryDirectory() as folder:
            _, cold = _process(arrays, selector, folder, gradients=gradients)
            imported, warm = _process(arrays, selector, folder, gradients=gradients)
        return {IMPORT: imported, COLD: cold, WARM: warm}

    def answer() -> Mapping[str, npt.NDArray[Any]]:
        with TemporaryDirectory() as folder:
            for _ in range(2):  # the second takes its kernels from the caches
                _process(arrays, selector, folder, gradients=gradients)
            with np.load(Path(folder) / ANSWER) as arrays_by_name:
                return dict(arrays_by_name)

    return Contender("vkrnn", device.name, device.driver_version, run, answer)


def problems(
    names: Sequence[str], sizes: Sequence[Sizes], device: vkrnn.Device, selector: str | None
) -> Iterator[Problem]:
    """Yield every cell on every workload, forward first, then with gradients."""
    for cell in names:
        for size in sizes:
            arrays = Arrays.draw(cell, size)
            for gradients in (False, True):
                contender = _contender(arrays, device, selector, gradients=gradients)
                yield arrays.problem(device, [contender], gradients=gradients)


def row(records: Sequence[Record]) -> list[str]:
    """Return a line of the table."""
    times = {record.measure: record.median for record in records}
    seconds = [milliseconds(times[measure]) for measure in (IMPORT, COLD, WARM)]
    return [records[0].op, records[0].workload, *seconds, f"{records[0].error:.1e}"]


def main() -> None:
    """Measure, print a table, say whether the floors were reached."""
    parser = cells.arguments(__doc__ or "")
    cells.add_sizes(parser)
    parser.set_defaults(rounds=ROUNDS)
    options = parser.parse_args()
    device = common.open_device(options.device)
    sizes = cells.sizes_of(options, device)
    pace = replace(SMOKE, rounds=1 if options.smoke else options.rounds)  # nothing of a fresh process can be warmed up
    measured = common.measure_all(
        problems(options.cells, sizes, device, options.device),
        len(options.cells) * len(sizes) * 2,
        pace,
        options.output,
    )
    groups = list(measured)
    show([f"{device!r}, {device.flavour!r}", "medians", ""])
    show([*table(["operation", "workload", IMPORT, COLD, WARM, "error"], map(row, groups)), ""])
    for measure, most in FLOORS.items():
        slowest = max(
            (record for records in groups for record in records if record.measure == measure),
            key=lambda record: record.median,
        )
        what = f"{measure}, worst row ({slowest.op}, {slowest.workload})"
        show([common.verdict(what, slowest.median, most, "s", at_least=False)])


if __name__ == "__main__":
    main()
