"""The three cells, forward and with gradients: vkrnn beside NumPy and PyTorch, in turns within one run.

On a CPU device the others are NumPy and PyTorch on the same cores, on a GPU PyTorch with cuDNN in strict float32.
``lstm`` is the forward call alone, ``lstm + gradients`` a training forward call and the gradients of all inputs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from statistics import geometric_mean

import vkrnn

from . import common
from .baseline_numpy import on_numpy
from .baseline_torch import find_torch, on_torch
from .common import DEVICE, HOST_CALL, Contender, Problem, Record, Sizes, milliseconds, show, table
from .problems import GATES, WEIGHTS_THERE, Arrays, on_vkrnn, on_vkrnn_with_weights_there

CPU_SIZES = (
    Sizes(128, 1, 128, 128),
    Sizes(64, 32, 256, 256),
    Sizes(32, 8, 512, 512),
    Sizes(100, 16, 128, 128),
    Sizes(50, 64, 512, 512),
    Sizes(200, 1, 512, 512),
    Sizes(512, 4, 64, 64),
)
GPU_SIZES = (
    Sizes(50, 1, 1024, 1024),
    Sizes(512, 1, 256, 256),
    Sizes(128, 32, 128, 128),
    Sizes(256, 64, 512, 512),
    Sizes(100, 64, 1024, 1024),
)
SMOKE_SIZES = (Sizes(5, 3, 7, 4),)

# On a GPU: vkrnn's device time at most cuDNN's.
GPU_FLOORS = (("lstm", str(GPU_SIZES[0])), ("lstm", str(GPU_SIZES[1])))
# On a CPU, of the other's time : vkrnn's whole call: the geometric mean over all rows, and the worst row.
CPU_FLOORS = {"torch": (1.3, 0.7), "numpy": (1.0, 1.0)}
WORST_ROWS = 5
DISTURBED = 1.3  # median : p10 above which something else had the machine for most of a contender's turns


def contenders(arrays: Arrays, device: vkrnn.Device, *, gradients: bool) -> Iterator[Contender]:
    """Yield vkrnn and those it is compared with on such a device."""
    yield on_vkrnn(arrays, device, gradients=gradients)
    torch = find_torch()
    if device.type == "cpu":
        yield on_numpy(arrays, gradients=gradients)
        if torch is not None:
            yield on_torch(torch, arrays, cuda=False, gradients=gradients)
    elif torch is not None and torch.cuda.is_available():
        yield on_torch(torch, arrays, cuda=True, gradients=gradients)


def problems(cells: Sequence[str], sizes: Sequence[Sizes], device: vkrnn.Device) -> Iterator[Problem]:
    """Yield every cell on every workload, forward first, then with gradients."""
    for cell in cells:
        for size in sizes:
            arrays = Arrays.draw(cell, size)
            for gradients in (False, True):
                found = list(contenders(arrays, device, gradients=gradients))
                if device.type == "cpu" and not gradients:  # weights that are trained change with every step
                    found.append(on_vkrnn_with_weights_there(arrays, device))
                yield arrays.problem(device, found, gradients=gradients)


def others(groups: Sequence[Sequence[Record]]) -> list[str]:
    """Return the names of those that vkrnn is compared with in any row."""
    names = dict.fromkeys(record.implementation for records in groups for record in records)
    return [name for name in names if name != "vkrnn"]


def row(records: Sequence[Record], names: Sequence[str]) -> list[str]:
    """Return a line of the table: times, then how many times as long the others take as vkrnn."""
    own = {record.measure: record for record in records if record.implementation == "vkrnn"}
    cells = [records[0].op, records[0].workload]
    cells += [milliseconds(own[measure].median) for measure in (HOST_CALL, DEVICE)]
    cells.append(f"{own[DEVICE].flops / own[DEVICE].median / 1e9:.1f}")
    for name in names:
        times = {record.measure: record.median for record in records if record.implementation == name}
        time = times.get(HOST_CALL, times.get(DEVICE))
        ratios = " / ".join(f"{time / own[measure].median:.2f}" for measure in (HOST_CALL, DEVICE)) if time else ""
        cells += [milliseconds(time) if time else "", ratios]
    return [*cells, f"{own[DEVICE].error:.1e}"]


def header(names: Sequence[str]) -> list[str]:
    """Return the table's first line."""
    columns = [column for name in names for column in (name, f"{name} : vkrnn")]
    return ["operation", "workload", "vkrnn call", "vkrnn device", "GFLOP/s", *columns, "error"]


def gpu_verdicts(groups: Sequence[Sequence[Record]]) -> Iterator[str]:
    """Yield a line for each floor on a GPU that this run can judge."""
    for records in groups:
        if (records[0].op, records[0].workload) not in GPU_FLOORS:
            continue
        times = {(record.implementation, record.measure): record.median for record in records}
        if ("torch", DEVICE) in times:
            ratio = times["torch", DEVICE] / times["vkrnn", DEVICE]
            what = f"{records[0].op} {records[0].workload}, cuDNN's time : vkrnn's"
            yield common.verdict(what, ratio, 1.0, "times", at_least=True)


def disturbed(groups: Sequence[Sequence[Record]]) -> Iterator[str]:
    """Yield a line for each contender and row whose time, and so whose ratio, is not to be trusted."""
    for record in (record for records in groups for record in records):
        spread = record.median / record.p10
        if record.measure in (HOST_CALL, DEVICE) and spread > DISTURBED:
            what = f"{record.implementation}, {record.op} {record.workload}, {record.measure}"
            yield f"disturbed    {what}: median {spread:.2f} times p10"


def host_ratios(groups: Sequence[Sequence[Record]], other: str, own: str = "vkrnn") -> dict[tuple[str, str], float]:
    """Return by operation and workload how many times as long as vkrnn's whole call the other's takes."""
    ratios = {}
    for records in groups:
        times = {record.implementation: record.median for record in records if record.measure == HOST_CALL}
        if {other, own} <= times.keys():
            ratios[records[0].op, records[0].workload] = times[other] / times[own]
    return ratios


def cpu_summary(groups: Sequence[Sequence[Record]]) -> Iterator[str]:
    """Yield the geometric means of the ratios by operation, the worst rows, and the floors on a CPU."""
    by_other = {other: host_ratios(groups, other) for other in CPU_FLOORS}
    by_other = {other: ratios for other, ratios in by_other.items() if ratios}
    if not by_other:
        return
    rows = []
    for op in [*dict.fromkeys(records[0].op for records in groups), "all"]:
        chosen = ([r for (of, _), r in ratios.items() if op in (of, "all")] for ratios in by_other.values())
        rows.append([op, *(f"{geometric_mean(values):.2f}" for values in chosen)])
    there = (host_ratios(groups, other, WEIGHTS_THERE).values() for other in by_other)
    rows.append(["forward, weights there", *(f"{geometric_mean(values):.2f}" for values in there)])
    yield from table(["geometric mean, whole call", *(f"{other} : vkrnn" for other in by_other)], rows)
    yield ""
    for other, ratios in by_other.items():
        worst = sorted(ratios.items(), key=lambda item: item[1])[:WORST_ROWS]
        listed = ((f"{op}, {workload}", f"{ratio:.2f}") for (op, workload), ratio in worst)
        yield from table([f"worst rows, {other} : vkrnn", "whole call"], listed)
        yield ""
    for other, ratios in by_other.items():
        mean, least = CPU_FLOORS[other]
        what = f"{other}'s time : vkrnn's whole call"
        yield common.verdict(f"{what}, geometric mean", geometric_mean(ratios.values()), mean, "times", at_least=True)
        yield common.verdict(f"{what}, worst row", min(ratios.values()), least, "times", at_least=True)


def arguments(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options of all benchmarks, and which cells."""
    parser = common.arguments(description)
    parser.add_argument("--cells", nargs="+", choices=sorted(GATES), default=list(GATES), help="which cells (all)")
    return parser


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Let the workloads be chosen."""
    parser.add_argument("--sizes", nargs="+", metavar="T,N,I,H", help="workloads; the device's kind decides")


def sizes_of(options: argparse.Namespace, device: vkrnn.Device) -> Sequence[Sizes]:
    """Return the workloads to run."""
    if options.sizes:
        return [Sizes(*map(int, text.split(","))) for text in options.sizes]
    if options.smoke:
        return SMOKE_SIZES
    return CPU_SIZES if device.type == "cpu" else GPU_SIZES


def main() -> None:
    """Measure, print a table, say which floors were reached."""
    parser = arguments(__doc__ or "")
    add_sizes(parser)
    options = parser.parse_args()
    device = common.open_device(options.device)
    sizes = sizes_of(options, device)
    count = len(options.cells) * len(sizes) * 2
    groups = list(
        common.measure_all(problems(options.cells, sizes, device), count, common.pace_of(options), options.output)
    )
    show([f"{device!r}, {device.flavour!r}", "medians; ratios against vkrnn's host call / its device time", ""])
    for name, driver in {(record.implementation, record.driver) for group in groups for record in group}:
        show([f"{name}: {driver}"])
    summary = cpu_summary if device.type == "cpu" else gpu_verdicts
    names = others(groups)
    lines = table(header(names), (row(records, names) for records in groups))
    show(["", *lines, "", *summary(groups), *disturbed(groups)])


if __name__ == "__main__":
    main()
