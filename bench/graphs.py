"""`bench.modules --graphs`: modules of `vkrnn.torch` and PyTorch's own, replayed from CUDA graphs in turns."""

from __future__ import annotations

import gc
import importlib
import itertools
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import inf, isfinite
from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

import vkrnn

from . import common
from .baseline_torch import TorchCell
from .common import GRAPH, HOST_CALL, Contender, Pace, Problem, Record, Sizes, cpu_name, show, table, timed
from .gpu import TOLERANCE
from .problems import Arrays

MODULE, TORCH = "vkrnn.torch", "torch"
WARM_UP = 0.4  # seconds of each contender before its turns
TURN = 0.02  # seconds
WARM_CALLS = 3  # before a capture


class Row(NamedTuple):
    """A stack of layers, forward or with gradients."""

    sizes: Sizes
    kind: str  # the dtype, or tf32 if operands of float32 products may be rounded
    cell: str
    gradients: bool

    @property
    def dtype(self) -> str:
        """Return the dtype of all tensors."""
        return "float32" if self.kind == "tf32" else self.kind

    @property
    def op(self) -> str:
        """Return the record's ``op``."""
        return f"{self.cell} + gradients" if self.gradients else self.cell

    def __str__(self) -> str:
        """Return the row's name in messages."""
        return f"{self.op} {self.sizes} {self.kind}"

    def cells(self) -> list[str]:
        """Return the first cells of the row's line in the table."""
        T, N, I, H = (getattr(self.sizes, letter) for letter in "TNIH")
        return [self.op, f"{T},{N},{I},{H}", str(self.sizes.layers), self.kind]


def captured(torch: Any, work: Callable[[], list[Any]]) -> tuple[Callable[[], Mapping[str, float]], list[Any]]:
    """Return a turn of replays of the captured work, and the tensors that each replay fills with its results."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_CALLS):
            work()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = work()
    graph.replay()
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    calls = 1

    def run(_: Any = work) -> Mapping[str, float]:  # the graph reads the module's tensors, which `work` keeps alive
        nonlocal calls
        start.record()
        for _ in range(calls):
            graph.replay()
        end.record()
        end.synchronize()
        seconds = start.elapsed_time(end) * 1e-3 / calls
        calls = max(1, round(TURN / seconds))
        return {GRAPH: seconds}

    return run, results


def plain_call(cell: TorchCell) -> Mapping[str, float]:
    """Return the time of a call that is not captured."""
    return {HOST_CALL: timed(cell.work)}


def difference(found: Sequence[Any], ideal: Sequence[Any]) -> float:
    """Return the worst max |a - b| / max |b| of the results; infinity if one is not finite."""
    pairs = zip((tensor.double() for tensor in found), (tensor.double() for tensor in ideal), strict=True)
    errors = [float((a - b).abs().max() / b.abs().max()) for a, b in pairs]
    return max(errors) if all(map(isfinite, errors)) else inf


def measure(torch: Any, where: str, row: Row, pace: Pace, planner: vkrnn.Device) -> list[Record]:
    """Measure both modules in turns. The records' error is the difference between their results."""
    arrays = Arrays.draw(row.cell, row.sizes, dtype=row.dtype)
    contenders, results = [], []
    for name in (TORCH, MODULE):
        cell = TorchCell(torch, arrays, where, row.dtype, gradients=row.gradients)
        driver = f"torch {torch.__version__}"
        if name == MODULE:
            importlib.import_module(MODULE).convert(cell.module, backend="vkrnn")
            driver = f"vkrnn {vkrnn.__version__}, {driver}"
        run: Callable[[], Mapping[str, float]]
        if where == "cpu":
            place, run, found = cpu_name(), partial(plain_call, cell), cell.work()
        else:
            place, (run, found) = torch.cuda.get_device_name(), captured(torch, cell.work)
        contenders.append(Contender(name, place, driver, run, None))
        results.append(found)
    error = difference(results[1], results[0])
    moved, flops = arrays.cost(planner, gradients=row.gradients)
    problem = Problem(row.op, f"{row.sizes} {row.kind}", moved, flops, {}, contenders)
    return [replace(record, checked=True, error=error) for record in common.measure(problem, pace)]


def attempt(torch: Any, where: str, row: Row, pace: Pace, planner: vkrnn.Device, failed: list[str]) -> list[Record]:
    """Return the records of a row. If it fails, print why, append that to `failed`, and return none."""
    try:
        gc.collect()  # the last row's graphs, with their memory
        if where != "cpu":
            torch.cuda.empty_cache()
        return measure(torch, where, row, pace, planner)
    except Exception as reason:  # noqa: BLE001 - whatever it is, the other rows can be measured
        failed.append(f"FAILED       {row}: {type(reason).__name__}: {str(reason)[:300]}")
        show(failed[-1:])
        return []


def microseconds(row: Row, record: Record) -> str:
    """Return the time of a step of all layers."""
    return f"{record.median / row.sizes.T * 1e6:.2f}"


def ratio(records: Sequence[Record]) -> float:
    """Return PyTorch's time / vkrnn's."""
    times = {record.implementation: record.median for record in records}
    return times[TORCH] / times[MODULE]


def depth(row: Row) -> str:
    """Return the number of layers."""
    return f"{row.sizes.layers} layer{'s' if row.sizes.layers > 1 else ''}"


def summary(ratios: Mapping[Row, float]) -> Iterator[str]:
    """Yield the geometric mean and the worst row, forward and with gradients: of each kind and depth, and of all."""
    names: list[Callable[[Row], str]] = [lambda row: f"{depth(row)}, {row.kind}", depth, lambda _: "all"]
    groups: dict[str, list[Row]] = {}
    for name, row in itertools.product(names, ratios):
        groups.setdefault(name(row), []).append(row)
    lines, listed = [], []
    for group, rows in groups.items():
        if rows in listed:  # the same rows have another name
            continue
        listed.append(rows)
        for gradients in (False, True):
            found = [row for row in rows if row.gradients == gradients]
            if found:
                worst = min(found, key=ratios.__getitem__)
                mean = geometric_mean(ratios[row] for row in found)
                line = [group, "with gradients" if gradients else "forward", str(len(found)), f"{mean:.2f}"]
                lines.append([*line, f"{ratios[worst]:.2f}", ", ".join(worst.cells())])
    yield from table([f"{TORCH} : {MODULE}", "pass", "rows", "geometric mean", "worst", "worst row"], lines)


def run(torch: Any, where: str, rows: Sequence[Row], pace: Pace, output: Path | None) -> None:
    """Measure, and print a line for each row, then the tables. Exit with 1 if a row failed or results differ."""
    failed: list[str] = []
    found: dict[Row, list[Record]] = {}
    torch.backends.cudnn.allow_tf32 = True
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if where != "cpu":
        torch.cuda.set_device(torch.device(where).index or 0)
    planner = common.open_native(None)
    try:
        for row in rows:
            records = attempt(torch, where, row, pace, planner, failed)
            if records:
                found[row] = records
                common.write(records, output)
                times = ", ".join(f"{each.implementation} {microseconds(row, each)}" for each in records)
                show([f"{row}: {times} us a step"])
    except KeyboardInterrupt:
        failed.append(f"INTERRUPTED  {len(rows) - len(found)} of {len(rows)} rows failed or are left out")
    lines, differ = [], []
    for row, records in found.items():
        error, allowed = records[0].error or 0.0, 2 * TOLERANCE[row.kind]  # as both sides round
        steps = [microseconds(row, record) for record in records]
        lines.append([*row.cells(), *steps, f"{ratio(records):.2f}", f"{error:.1e}"])
        if error > allowed:
            differ.append(f"DIFFERS      {row}: by {error:.1e} of the largest value (at most {allowed:.1e})")
    every = [record for records in found.values() for record in records]
    show(["", *dict.fromkeys(f"{each.implementation}: {each.driver}, {each.device}" for each in every)])
    what = "plain calls" if where == "cpu" else "replays of CUDA graphs"
    show([*common.settings(), "", f"medians of {what}, us a step of all layers", ""])
    columns = [TORCH, MODULE, f"{TORCH} : {MODULE}", "difference"]
    show(table(["operation", "T,N,I,H", "layers", "type", *columns], lines))
    show(["", *summary({row: ratio(records) for row, records in found.items()}), "", *differ, *failed])
    if differ or failed:
        raise SystemExit(1)
