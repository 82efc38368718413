"""Calls of the native CPU device in a process that also calls other libraries, all with default settings.

Threads of PyTorch, ONNX Runtime and OpenBLAS spin for a while after their work. A call of vkrnn follows each of their
calls, or takes turns of a tenth of a second with them. Both are compared with the same call alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

import vkrnn

from . import cells, common
from .baseline_onnxruntime import find_onnxruntime, on_onnxruntime
from .baseline_torch import find_torch, on_torch
from .common import HOST_CALL, Contender, Pace, Problem, Record, Sizes, cpu_name, milliseconds, show, table
from .problems import Arrays, on_vkrnn

SIZES = (Sizes(36, 56, 96, 352), Sizes(20, 4, 600, 704), Sizes(50, 20, 288, 288), Sizes(64, 32, 256, 256))
SMOKE_SIZES = (Sizes(5, 3, 7, 4),)
PRODUCT, SMOKE_PRODUCT = 700, 8  # side of the matrices
ALONE, AFTER, TURNS = "alone", "after a call of", "in turns with"
CEILINGS = {AFTER: 1.3, TURNS: 1.1}  # relative to the time alone

# All threads become idle between two turns of contenders. Those of OpenBLAS spin for a tenth of a second.
PACE = Pace(warm_up=0.1, settle=0.25, turn=0.3, most=20)
TURN, SMOKE_TURN = 0.1, 0.0  # seconds


def neighbours(arrays: Arrays, side: int) -> dict[str, Callable[[], object]]:
    """Return calls of the libraries that are installed, by what they are called in the tables."""
    matrix = np.random.default_rng(0).standard_normal((side, side), np.float32)
    found: dict[str, Callable[[], object]] = {"NumPy's product": lambda: matrix @ matrix}
    torch, onnxruntime = find_torch(), find_onnxruntime()
    if torch is not None:
        tensor = torch.from_numpy(matrix)
        found["PyTorch's LSTM"] = on_torch(torch, arrays, gradients=False).run
        found["PyTorch's product"] = lambda: tensor @ tensor
    if onnxruntime is not None:
        found["ONNX Runtime's LSTM"] = on_onnxruntime(onnxruntime, arrays).run
    return found


def whole_calls(own: Contender) -> Contender:
    """Return the contender with no measure but the whole call's time."""
    return replace(own, run=lambda: {HOST_CALL: own.run()[HOST_CALL]})


def after(own: Contender, name: str, other: Callable[[], object]) -> Contender:
    """Return the contender whose each call follows one of another library."""

    def run() -> Mapping[str, float]:
        other()
        return own.run()

    return replace(own, driver=f"{own.driver}, {AFTER} {name}", run=run)


def in_turns(own: Contender, name: str, other: Callable[[], object], turn: float) -> Contender:
    """Return the contender whose calls take turns with those of another library; a run is a turn of each."""

    def run() -> Mapping[str, float]:
        end = time.perf_counter() + turn
        other()
        while time.perf_counter() < end:
            other()
        seconds = [own.run()[HOST_CALL]]
        while sum(seconds) < turn:
            seconds.append(own.run()[HOST_CALL])
        return {HOST_CALL: sum(seconds) / len(seconds)}

    return replace(own, driver=f"{own.driver}, {TURNS} {name}", run=run)


def problems(sizes: Sequence[Sizes], device: vkrnn.Device, *, smoke: bool) -> Iterator[Problem]:
    """Yield an LSTM's forward call on every workload: alone, and beside each neighbour in both ways."""
    for size in sizes:
        arrays = Arrays.draw("lstm", size)
        own = whole_calls(on_vkrnn(arrays, device, gradients=False))
        contenders = [replace(own, driver=f"{own.driver}, {ALONE}")]
        for name, other in neighbours(arrays, SMOKE_PRODUCT if smoke else PRODUCT).items():
            contenders.append(after(own, name, other))
            contenders.append(in_turns(own, name, other, SMOKE_TURN if smoke else TURN))
        yield arrays.problem(device, contenders, gradients=False)


def beside(record: Record) -> str:
    """Return what the record's calls were made beside, as the driver field says."""
    return record.driver.rpartition(", ")[2]


def report(groups: Sequence[Sequence[Record]]) -> Iterator[str]:
    """Yield the table of ratios to the time alone, and whether the ceilings were kept."""
    ratios: list[dict[str, float]] = []
    rows = []
    for records in groups:
        times = {beside(record): record.median for record in records}
        alone = times.pop(ALONE)
        ratios.append({name: seconds / alone for name, seconds in times.items()})
        rows.append([records[0].workload, milliseconds(alone), *(f"{ratio:.2f}" for ratio in ratios[-1].values())])
    yield from table(["workload", ALONE, *ratios[0]], rows)
    yield ""
    for name in ratios[0]:
        ceiling = next(most for way, most in CEILINGS.items() if name.startswith(way))
        worst = max(range(len(ratios)), key=lambda row: ratios[row][name])
        what = f"{name}, time : time alone, worst row ({groups[worst][0].workload})"
        yield common.verdict(what, ratios[worst][name], ceiling, "times", at_least=False)


def main() -> None:
    """Measure, print a table, say which ceilings were kept."""
    parser = common.arguments(__doc__ or "")
    cells.add_sizes(parser)
    options = parser.parse_args()
    device = common.open_native(options.device)
    sizes = cells.sizes_of(options, device, SMOKE_SIZES, SIZES)
    pace = common.pace_of(options) if options.smoke else replace(PACE, rounds=options.rounds)
    found = problems(sizes, device, smoke=options.smoke)
    groups = list(common.measure_all(found, len(sizes), pace, options.output))
    show([f"{device!r}, {cpu_name()}", *common.settings(), "medians of calls beside other libraries : alone", ""])
    show(report(groups))


if __name__ == "__main__":
    main()
