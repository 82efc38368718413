"""The rows of `bench.cells` on the native CPU device with 1, 2, 4, 8 and 16 threads, up to the number of processors.

``VKRNN_NUM_THREADS`` is read at each call, so all numbers of threads take turns in one process. LSTM rows include
PyTorch with as many threads.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy.typing as npt

import vkrnn

from . import cells, common
from .baseline_torch import find_torch, on_torch
from .common import HOST_CALL, THREADS, Contender, Problem, Record, Sizes, cpu_name, milliseconds, show, table
from .problems import Arrays, on_vkrnn

COUNTS = (1, 2, 4, 8, 16)
VARIABLE = "VKRNN_NUM_THREADS"
FASTER = ("lstm", str(Sizes(50, 64, 512, 512)), 1, 8, 5.0)  # eight threads are at least five times as fast as one
SLOWER = (8, 16, 1.1)  # sixteen threads take at most 1.1 times as long as eight on any row


def _with(threads: int, contender: Contender, set_threads: Any) -> Contender:
    """Return the contender with this many threads."""

    def run() -> Mapping[str, float]:
        set_threads(threads)
        return contender.run()

    def answer() -> Mapping[str, npt.NDArray[Any]]:
        set_threads(threads)
        found: Mapping[str, npt.NDArray[Any]] = {} if contender.answer is None else contender.answer()
        return found

    return replace(contender, run=run, answer=answer)


def _set_own(threads: int) -> None:
    os.environ[VARIABLE] = str(threads)


def contenders(arrays: Arrays, device: vkrnn.Device, counts: Sequence[int], *, gradients: bool) -> Iterator[Contender]:
    """Yield vkrnn with each number of threads and, for LSTM, PyTorch."""
    torch = find_torch() if arrays.cell == "lstm" else None
    for threads in counts:
        own = on_vkrnn(arrays, device, gradients=gradients)
        yield _with(threads, replace(own, driver=f"{own.driver}, {threads} threads"), _set_own)
        if torch is not None:
            other = on_torch(torch, arrays, gradients=gradients, threads=threads)
            yield _with(threads, other, torch.set_num_threads)


def problems(
    names: Sequence[str], sizes: Sequence[Sizes], device: vkrnn.Device, counts: Sequence[int]
) -> Iterator[Problem]:
    """Yield every cell on every workload, forward first, then with gradients."""
    for cell in names:
        for size in sizes:
            arrays = Arrays.draw(cell, size)
            for gradients in (False, True):
                found = list(contenders(arrays, device, counts, gradients=gradients))
                yield arrays.problem(device, found, gradients=gradients)


def threads_of(record: Record) -> int:
    """Return the number of threads of the record."""
    return next(int(part.split()[0]) for part in record.driver.split(", ") if part.endswith(" threads"))


def times_of(records: Sequence[Record], implementation: str) -> dict[int, float]:
    """Return the whole call's time by number of threads."""
    chosen = (r for r in records if r.measure == HOST_CALL and r.implementation == implementation)
    return {threads_of(record): record.median for record in chosen}


def row(records: Sequence[Record], counts: Sequence[int]) -> list[str]:
    """Return a line of the table: times, and speed-ups over the fewest threads."""
    line = [records[0].op, records[0].workload]
    for name in ("vkrnn", "torch"):
        times = times_of(records, name)
        line += [f"{milliseconds(times[n])}, {times[counts[0]] / times[n]:.2f}" if times else "" for n in counts]
    return line


def verdicts(groups: Sequence[Sequence[Record]]) -> Iterator[str]:
    """Yield a line for each floor, or why it cannot be judged."""
    op, workload, few, many, floor = FASTER
    judged = False
    worst = []
    for records in groups:
        times = times_of(records, "vkrnn")
        where = (records[0].op, records[0].workload)
        if where == (op, workload) and {few, many} <= times.keys():
            judged = True
            what = f"{op} {workload}, {many} threads, as fast as {few}"
            yield common.verdict(what, times[few] / times[many], floor, "times", at_least=True)
        if set(SLOWER[:2]) <= times.keys():
            worst.append((times[SLOWER[1]] / times[SLOWER[0]], " ".join(where)))
    if not judged:
        yield f"not judged: {op} {workload} with {many} threads, for want of processors or of the row"
    if worst:
        ratio, where_worst = max(worst)
        what = f"worst row ({where_worst}), time of {SLOWER[1]} threads : {SLOWER[0]}"
        yield common.verdict(what, ratio, SLOWER[2], "times", at_least=False)
    else:
        yield f"not judged: {SLOWER[1]} threads beside {SLOWER[0]}, for want of processors"


def main() -> None:
    """Measure, print a table, say which floors were reached."""
    parser = cells.arguments(__doc__ or "")
    cells.add_sizes(parser)
    options = parser.parse_args()
    device = common.open_native(options.device)
    counts = [count for count in COUNTS if count <= THREADS]
    sizes = cells.sizes_of(options, device)
    count = len(options.cells) * len(sizes) * 2
    found = problems(options.cells, sizes, device, counts)
    settings, before = common.settings(), os.environ.get(VARIABLE)
    try:
        groups = list(common.measure_all(found, count, common.pace_of(options), options.output))
    finally:
        os.environ.pop(VARIABLE, None)
        if before is not None:
            os.environ[VARIABLE] = before
    columns = [f"{name}, {n}" for name in ("vkrnn", "torch") for n in counts]
    show([f"{device!r}, {cpu_name()}", *settings, "medians of whole calls by threads, and the gain", ""])
    show([*table(["operation", "workload", *columns], (row(records, counts) for records in groups)), ""])
    show(verdicts(groups))


if __name__ == "__main__":
    main()
