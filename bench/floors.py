"""The summary of `bench.cells`: means, worst rows, and which floors were reached."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from statistics import geometric_mean
from typing import NamedTuple

import vkrnn

from . import common
from .common import DEVICE, HOST_CALL, Record, table
from .problems import GATES, WEIGHTS_THERE

Ratios = Mapping[tuple[str, str], float]  # by operation and workload


class Floor(NamedTuple):
    """The least ratio of the other library's time to that of vkrnn's whole call, on the native CPU device."""

    mean: float  # the geometric mean over all rows
    worst: float
    lstm: float | None = None  # the geometric mean over LSTM's rows, forward and with gradients


CPU_FLOORS = {"torch": Floor(1.6, 1.0, 1.15), "onnxruntime": Floor(1.2, 1.0), "numpy": Floor(2.0, 1.0)}
TORCH_MEAN_WITH_AVX2 = 1.4
# Limit vkrnn and PyTorch to AVX2; in lower case. oneDNN computes PyTorch's LSTM, ATen and MKL the GRU and the RNN.
AVX2_ALONE = dict.fromkeys(
    ("VKRNN_CPU_TARGET", "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_ENABLE_INSTRUCTIONS"), "avx2"
)
WORST_ROWS = 5
DISTURBED = 1.3  # median / p10 above which other programs disturbed most of a contender's turns


def disturbed(groups: Sequence[Sequence[Record]]) -> Iterator[str]:
    """Yield a line for each contender and row with an unreliable time and ratio."""
    for record in (record for records in groups for record in records):
        spread = record.median / record.p10
        if record.measure in (HOST_CALL, DEVICE) and spread > DISTURBED:
            what = f"{record.implementation}, {record.op} {record.workload}, {record.measure}"
            yield f"disturbed    {what}: median {spread:.2f} times p10"


def host_ratios(groups: Sequence[Sequence[Record]], other: str, own: str = "vkrnn") -> dict[tuple[str, str], float]:
    """Return the ratios of the other's time to vkrnn's whole call, by operation and workload."""
    ratios = {}
    for records in groups:
        times = {record.implementation: record.median for record in records if record.measure == HOST_CALL}
        if {other, own} <= times.keys():
            ratios[records[0].op, records[0].workload] = times[other] / times[own]
    return ratios


def of_cell(ratios: Ratios, cell: str) -> list[float]:
    """Return the ratios of a cell, forward and with gradients."""
    return [ratio for (op, _), ratio in ratios.items() if op.split(" + ")[0] == cell]


def means(groups: Sequence[Sequence[Record]], by_other: Mapping[str, Ratios]) -> list[str]:
    """Return a table of geometric means: of each operation, of each cell, of all rows, and with the weights there."""

    def line(what: str, chosen: Iterator[list[float]]) -> list[str]:
        return [what, *(f"{geometric_mean(values):.2f}" if values else "" for values in chosen)]

    def of_operation(op: str) -> Iterator[list[float]]:
        return ([ratio for (of, _), ratio in ratios.items() if of == op] for ratios in by_other.values())

    rows = [line(op, of_operation(op)) for op in dict.fromkeys(records[0].op for records in groups)]
    for cell in GATES:
        found = [of_cell(ratios, cell) for ratios in by_other.values()]
        if any(found):
            rows.append(line(f"all of {cell}", iter(found)))
    rows.append(line("all", (list(ratios.values()) for ratios in by_other.values())))
    there = (list(host_ratios(groups, other, WEIGHTS_THERE).values()) for other in by_other)
    rows.append(line("forward, weights there", there))
    return table(["geometric mean, whole call", *(f"{other} : vkrnn" for other in by_other)], rows)


def avx2_alone() -> bool:
    """Return whether vkrnn and PyTorch were both limited to AVX2."""
    return all(os.environ.get(name, "").lower() == value for name, value in AVX2_ALONE.items())


def cpu_verdicts(by_other: Mapping[str, Ratios]) -> Iterator[str]:
    """Yield a line for each floor on the native CPU device."""
    for other, ratios in by_other.items():
        floor = CPU_FLOORS[other]
        mean = TORCH_MEAN_WITH_AVX2 if other == "torch" and avx2_alone() else floor.mean
        what = f"{other}'s time : vkrnn's whole call"
        yield common.verdict(f"{what}, geometric mean", geometric_mean(ratios.values()), mean, "times", at_least=True)
        lstm = of_cell(ratios, "lstm")
        if floor.lstm is not None and lstm:
            reached = geometric_mean(lstm)
            yield common.verdict(f"{what}, geometric mean of LSTM", reached, floor.lstm, "times", at_least=True)
        (op, workload), ratio = min(ratios.items(), key=lambda item: item[1])
        yield common.verdict(f"{what}, worst row ({op}, {workload})", ratio, floor.worst, "times", at_least=True)
    only = [name for name in AVX2_ALONE if name in os.environ]
    if "torch" in by_other and only and not avx2_alone():
        yield f"Only {', '.join(only)} is set, or not to AVX2: vkrnn and PyTorch may not use the same instructions."
    if "onnxruntime" in by_other and only:
        yield "ONNX Runtime has no such setting. Where there is AVX-512, it uses it, so its ratios say nothing of AVX2."


def cpu_summary(groups: Sequence[Sequence[Record]], device: vkrnn.Device) -> Iterator[str]:
    """Yield the geometric means of the ratios, the worst rows, and, for the native device, the floors."""
    by_other = {other: host_ratios(groups, other) for other in CPU_FLOORS}
    by_other = {other: ratios for other, ratios in by_other.items() if ratios}
    if not by_other:
        return
    yield from means(groups, by_other)
    yield ""
    for other, ratios in by_other.items():
        worst = sorted(ratios.items(), key=lambda item: item[1])[:WORST_ROWS]
        listed = ((f"{op}, {workload}", f"{ratio:.2f}") for (op, workload), ratio in worst)
        yield from table([f"worst rows, {other} : vkrnn", "whole call"], listed)
        yield ""
    if common.is_native(device):
        yield from cpu_verdicts(by_other)


def summary(groups: Sequence[Sequence[Record]], device: vkrnn.Device) -> Iterator[str]:
    """Yield the summary for such a device, and the disturbed rows."""
    yield from cpu_summary(groups, device)
    yield from disturbed(groups)
