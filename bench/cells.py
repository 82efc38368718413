"""The three cells, forward and with gradients: vkrnn, NumPy, PyTorch and ONNX Runtime, in turns within one run.

On a CPU device, vkrnn is compared with NumPy, PyTorch and, for forward calls of LSTM and GRU, ONNX Runtime on the same
cores. On a GPU it runs alone; see `bench.gpu`. ``lstm`` is the forward call. ``lstm + gradients`` is a training forward
call and the gradients of all inputs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import vkrnn

from . import common
from .baseline_numpy import on_numpy
from .baseline_onnxruntime import find_onnxruntime, on_onnxruntime, runs_on_onnxruntime
from .baseline_torch import find_torch, on_torch
from .common import DEVICE, HOST_CALL, Contender, Problem, Record, Sizes, milliseconds, show, table
from .floors import summary
from .problems import GATES, Arrays, on_vkrnn, on_vkrnn_with_weights_there

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


def contenders(arrays: Arrays, device: vkrnn.Device, *, gradients: bool) -> Iterator[Contender]:
    """Yield vkrnn on the device, and the libraries to compare it with."""
    yield on_vkrnn(arrays, device, gradients=gradients)
    if device.type != "cpu":
        return
    yield on_numpy(arrays, gradients=gradients)
    torch = find_torch()
    if torch is not None:
        yield on_torch(torch, arrays, gradients=gradients)
    modules = find_onnxruntime() if runs_on_onnxruntime(arrays.cell, gradients=gradients) else None
    if modules is not None:
        yield on_onnxruntime(modules, arrays)


def problems(cells: Sequence[str], sizes: Sequence[Sizes], device: vkrnn.Device) -> Iterator[Problem]:
    """Yield every cell on every workload, forward first, then with gradients."""
    for cell in cells:
        for size in sizes:
            arrays = Arrays.draw(cell, size)
            for gradients in (False, True):
                found = list(contenders(arrays, device, gradients=gradients))
                if device.type == "cpu" and not gradients:  # training changes the weights at every step
                    found.append(on_vkrnn_with_weights_there(arrays, device))
                yield arrays.problem(device, found, gradients=gradients)


def others(groups: Sequence[Sequence[Record]]) -> list[str]:
    """Return the names of all libraries for comparison."""
    names = dict.fromkeys(record.implementation for records in groups for record in records)
    return [name for name in names if name != "vkrnn"]


def row(records: Sequence[Record], names: Sequence[str]) -> list[str]:
    """Return a line of the table: times, and the others' times relative to vkrnn's."""
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


def arguments(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options of all benchmarks, and which cells."""
    parser = common.arguments(description)
    parser.add_argument("--cells", nargs="+", choices=sorted(GATES), default=list(GATES), help="which cells (all)")
    return parser


def parse_sizes(text: str) -> Sizes:
    """Return the workload of ``T,N,I,H``."""
    try:
        T, N, I, H = map(int, text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected T,N,I,H, got {text!r}") from None
    return Sizes(T, N, I, H)


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Add the option that chooses the workloads."""
    parser.add_argument(
        "--sizes", nargs="+", type=parse_sizes, metavar="T,N,I,H", help="workloads; the device's kind decides"
    )


def sizes_of(
    options: argparse.Namespace,
    device: vkrnn.Device,
    smoke: Sequence[Sizes] = SMOKE_SIZES,
    full: Sequence[Sizes] | None = None,
) -> Sequence[Sizes]:
    """Return the workloads to run."""
    if options.sizes:
        return list(options.sizes)
    if options.smoke:
        return smoke
    return full or (CPU_SIZES if device.type == "cpu" else GPU_SIZES)


def main() -> None:
    """Measure, print a table, say which floors were reached."""
    parser = arguments(__doc__ or "")
    add_sizes(parser)
    options = parser.parse_args()
    device = common.open_device(options.device)
    pace = common.pace_of(options)
    sizes = sizes_of(options, device)
    found = problems(options.cells, sizes, device)
    groups = list(common.measure_all(found, len(options.cells) * len(sizes) * 2, pace, options.output))
    show([repr(device), *common.settings(), ""])
    show(["medians; ratios against vkrnn's host call / its device time", ""])
    for name, driver in dict.fromkeys((record.implementation, record.driver) for group in groups for record in group):
        show([f"{name}: {driver}"])
    names = others(groups)
    lines = table(header(names), (row(records, names) for records in groups))
    show(["", *lines, "", *summary(groups, device)])


if __name__ == "__main__":
    main()
