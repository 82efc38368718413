"""The first call of a fresh process, and the import of vkrnn.

On a Vulkan device, with empty caches on disk and then with filled ones. On the native CPU device, which has no caches,
with the second call and the import of NumPy for comparison. Times are from just before the first operation to its
return, so they include opening the device. The import of vkrnn is timed separately. ``lstm + gradients`` is the sum of
two first calls, a training forward call and the gradients, or of two second ones.
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
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

import vkrnn

from . import cells, common
from .common import (
    COLD,
    FIRST,
    IMPORT,
    SECOND,
    SMOKE,
    WARM,
    Contender,
    Problem,
    Record,
    Sizes,
    milliseconds,
    show,
    table,
)
from .problems import Arrays

FLOORS = {COLD: 2.0, WARM: 0.3}  # seconds
FIRST_FLOOR = 5e-3  # seconds of the first call beyond the second one, on the native CPU device
IMPORT_FLOOR = 60e-3  # seconds of importing vkrnn beyond importing NumPy
ROUNDS = 3
ANSWER = "answer.npz"

# A separate program, because importing this module imports vkrnn.
PROGRAM = """
import time
start = time.perf_counter()
import vkrnn
seconds = time.perf_counter() - start
from bench import first_call
first_call.child(seconds)
"""
NUMPY_PROGRAM = """
import time
start = time.perf_counter()
import numpy
print(time.perf_counter() - start)
"""
ROOT = Path(__file__).parents[1]


def child(imported: float) -> None:
    """Make the first two calls of this process, store the answer in the cache folder, and print the times."""
    cell, sizes, gradients, folder = json.loads(sys.argv[1])
    arrays = Arrays.draw(cell, Sizes(*sizes))
    called = []
    for _ in range(2):
        start = time.perf_counter()
        answer: dict[str, Any] = arrays.answer(vkrnn, gradients=gradients)
        called.append(time.perf_counter() - start)
    np.savez(Path(folder) / ANSWER, **answer)
    show([json.dumps([imported, *called])])


def _process(arrays: Arrays, selector: str | None, folder: str, *, gradients: bool) -> tuple[float, float, float]:
    """Return the seconds that the import and the first two calls take in a process with its caches in that folder."""
    own = {"VKRNN_CACHE_DIR": folder, "MESA_SHADER_CACHE_DIR": folder}
    if selector is not None:
        own["VKRNN_DEVICE"] = selector
    sizes = arrays.sizes
    request = json.dumps([arrays.cell, [sizes.T, sizes.N, sizes.I, sizes.H], gradients, folder])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, request],
        cwd=ROOT,
        env=os.environ | own,
        stdout=subprocess.PIPE,
        check=True,
    )
    imported, first, second = json.loads(done.stdout)
    return imported, first, second


def _contender(arrays: Arrays, device: vkrnn.Device, selector: str | None, *, gradients: bool) -> Contender:
    native = common.is_native(device)

    def run() -> dict[str, float]:
        with TemporaryDirectory() as folder:
            imported, first, second = _process(arrays, selector, folder, gradients=gradients)
            if native:
                return {IMPORT: imported, FIRST: first, SECOND: second}
            imported, warm, _ = _process(arrays, selector, folder, gradients=gradients)
        return {IMPORT: imported, COLD: first, WARM: warm}

    def answer() -> Mapping[str, npt.NDArray[Any]]:
        with TemporaryDirectory() as folder:
            for _ in range(1 if native else 2):  # the second process uses the caches of the first
                _process(arrays, selector, folder, gradients=gradients)
            with np.load(Path(folder) / ANSWER) as arrays_by_name:
                return dict(arrays_by_name)

    return Contender("vkrnn", device.name, device.driver_version, run, answer)


def _numpy() -> Contender:
    """Return the import of NumPy alone."""

    def run() -> dict[str, float]:
        done = subprocess.run([sys.executable, "-c", NUMPY_PROGRAM], cwd=ROOT, stdout=subprocess.PIPE, check=True)
        return {IMPORT: float(done.stdout)}

    return Contender("numpy", common.cpu_name(), f"NumPy {np.__version__}", run, None)


def problems(
    names: Sequence[str], sizes: Sequence[Sizes], device: vkrnn.Device, selector: str | None
) -> Iterator[Problem]:
    """Yield every cell on every workload, forward first, then with gradients."""
    for cell in names:
        for size in sizes:
            arrays = Arrays.draw(cell, size)
            for gradients in (False, True):
                found = [_contender(arrays, device, selector, gradients=gradients)]
                if common.is_native(device):
                    found.append(_numpy())
                yield arrays.problem(device, found, gradients=gradients)


def row(records: Sequence[Record], measures: Sequence[str]) -> list[str]:
    """Return a line of the table."""
    times = {record.measure: record.median for record in records if record.implementation == "vkrnn"}
    seconds = [milliseconds(times[measure]) for measure in measures]
    return [records[0].op, records[0].workload, *seconds, f"{records[0].error:.1e}"]


def verdicts(groups: Sequence[Sequence[Record]]) -> Iterator[str]:
    """Yield a line for each floor on a Vulkan device."""
    for measure, most in FLOORS.items():
        slowest = max(
            (record for records in groups for record in records if record.measure == measure),
            key=lambda record: record.median,
        )
        what = f"{measure}, worst row ({slowest.op}, {slowest.workload})"
        yield common.verdict(what, slowest.median, most, "s", at_least=False)


def native_verdicts(groups: Sequence[Sequence[Record]]) -> Iterator[str]:
    """Yield a line for each floor on the native CPU device."""
    more, imports = [], []
    for records in groups:
        times = {(record.implementation, record.measure): record.median for record in records}
        where = f"{records[0].op}, {records[0].workload}"
        more.append((times["vkrnn", FIRST] - times["vkrnn", SECOND], where))
        imports.append(times["vkrnn", IMPORT] - times["numpy", IMPORT])
    worst, where = max(more)
    what = f"{FIRST} less {SECOND}"
    yield common.verdict(f"{what}, worst row ({where})", worst * 1e3, FIRST_FLOOR * 1e3, "ms", at_least=False)
    yield f"             {what}, median of the rows: {median(seconds for seconds, _ in more) * 1e3:.3g} ms"
    what = f"{IMPORT} less NumPy's, median of the rows"
    yield common.verdict(what, median(imports) * 1e3, IMPORT_FLOOR * 1e3, "ms", at_least=False)


def main() -> None:
    """Measure, print a table, say whether the floors were reached."""
    parser = cells.arguments(__doc__ or "")
    cells.add_sizes(parser)
    parser.set_defaults(rounds=ROUNDS)
    options = parser.parse_args()
    device = common.open_device(options.device)
    sizes = cells.sizes_of(options, device)
    pace = replace(SMOKE, rounds=1 if options.smoke else options.rounds)  # a fresh process cannot be warmed up
    measured = common.measure_all(
        problems(options.cells, sizes, device, options.device),
        len(options.cells) * len(sizes) * 2,
        pace,
        options.output,
    )
    groups = list(measured)
    show([repr(device), "medians", ""])
    native = common.is_native(device)
    measures = (IMPORT, FIRST, SECOND) if native else (IMPORT, COLD, WARM)
    body = (row(records, measures) for records in groups)
    show([*table(["operation", "workload", *measures, "error"], body), ""])
    show(native_verdicts(groups) if native else verdicts(groups))


if __name__ == "__main__":
    main()
