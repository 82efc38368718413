"""The three cells, forward and with gradients: vkrnn, NumPy, PyTorch and ONNX Runtime, in turns within one run.

On a CPU device, vkrnn is compared with NumPy, PyTorch and, for forward calls of LSTM and GRU, ONNX Runtime on the same
cores. On a GPU it runs alone; see `bench.gpu`. ``lstm`` is the forward call. ``lstm + gradients`` is a training forward
call and the gradients of all inputs. Several layers are a `vkrnn.network`. With ``--alone``, each contender has a
process to itself.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import vkrnn

from . import alone, common
from .baseline_numpy import on_numpy
from .baseline_onnxruntime import find_onnxruntime, on_onnxruntime, runs_on_onnxruntime
from .baseline_torch import find_torch, on_torch
from .common import DEVICE, HOST_CALL, Contender, Problem, Record, Sizes, milliseconds, show, table
from .floors import summary
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
# Names that --sizes accepts in place of T,N,I,H
PRESETS = {
    "stacks": (Sizes(600, 1, 64, 64, 4), Sizes(600, 1, 256, 256, 3), *(Sizes(600, N, 256, 256, 8) for N in (1, 4))),
    "wavefront": (
        Sizes(256, 16, 512, 512, 4),
        Sizes(256, 64, 512, 512, 4),
        Sizes(100, 64, 1024, 1024, 4),
        Sizes(512, 1, 256, 256, 4),
        Sizes(128, 32, 128, 128, 4),
        Sizes(512, 1, 256, 256, 8),
        Sizes(256, 16, 512, 512, 8),
    ),
}


def contender(name: str, arrays: Arrays, device: vkrnn.Device, *, gradients: bool) -> Contender | None:
    """Return vkrnn on the device or a library on the CPU; None if it is not installed or lacks the operation."""
    if name == "vkrnn":
        return on_vkrnn(arrays, device, gradients=gradients)
    if name == "numpy":
        return None if arrays.above else on_numpy(arrays, gradients=gradients)
    if name == "torch":
        torch = find_torch()
        return None if torch is None else on_torch(torch, arrays, gradients=gradients)
    if name == "onnxruntime":
        modules = find_onnxruntime() if runs_on_onnxruntime(arrays.cell, gradients=gradients) else None
        return None if modules is None else on_onnxruntime(modules, arrays)
    return None if gradients else on_vkrnn_with_weights_there(arrays, device)  # training changes the weights


def contenders_on(device: vkrnn.Device) -> Sequence[str]:
    """Return the names of the contenders to measure beside such a device."""
    return ("vkrnn", "numpy", "torch", "onnxruntime", WEIGHTS_THERE) if device.type == "cpu" else ("vkrnn",)


def problems(
    cells: Sequence[str], sizes: Sequence[Sizes], device: vkrnn.Device, names: Sequence[str]
) -> Iterator[Problem]:
    """Yield every cell on every workload, forward first, then with gradients, with these contenders."""
    for cell in cells:
        for size in sizes:
            arrays = Arrays.draw(cell, size)
            for gradients in (False, True):
                found = (contender(name, arrays, device, gradients=gradients) for name in names)
                yield arrays.problem(device, [each for each in found if each is not None], gradients=gradients)


def problems_of_one(cells: Sequence[str], sizes: Sequence[Sizes], device: int, name: str) -> Iterator[Problem]:
    """Yield the same problems with one contender, in a process to itself."""
    yield from problems(cells, sizes, vkrnn.Device(device), [name])


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


def parse_workloads(text: str) -> Sequence[Sizes]:
    """Return the workload of ``T,N,I,H``, or those that have this name."""
    return PRESETS.get(text) or [parse_sizes(text)]


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose the workloads."""
    names = ", ".join(PRESETS)
    what = f"workloads; or, with their layers, {names}; the device's kind decides"
    parser.add_argument("--sizes", nargs="+", type=parse_workloads, metavar="T,N,I,H", help=what)
    parser.add_argument("--layers", nargs="+", type=int, metavar="N", help="workloads of so many layers (1)")


def sizes_of(
    options: argparse.Namespace,
    device: vkrnn.Device,
    smoke: Sequence[Sizes] = SMOKE_SIZES,
    full: Sequence[Sizes] | None = None,
) -> Sequence[Sizes]:
    """Return the workloads to run."""
    found = full or (CPU_SIZES if device.type == "cpu" else GPU_SIZES)
    if options.sizes:
        found = [size for sizes in options.sizes for size in sizes]
    elif options.smoke:
        found = smoke
    if options.layers:
        found = list(dict.fromkeys(replace(size, layers=layers) for layers in options.layers for size in found))
    return found


def main() -> None:
    """Measure, print a table, say which floors were reached."""
    parser = arguments(__doc__ or "")
    add_sizes(parser)
    parser.add_argument("--alone", action="store_true", help="each contender in a process to itself; they take turns")
    options = parser.parse_args()
    device = common.open_device(options.device)
    sizes, names = sizes_of(options, device), contenders_on(device)
    rest = (len(options.cells) * len(sizes) * 2, common.pace_of(options), options.output)
    if options.alone:
        makers = [partial(problems_of_one, options.cells, sizes, device.index, name) for name in names]
        groups = list(alone.measure_all(makers, *rest))
    else:
        groups = list(common.measure_all(problems(options.cells, sizes, device, names), *rest))
    where = "each contender alone in its process" if options.alone else "all contenders in one process"
    show([repr(device), *common.settings(), ""])
    show([f"medians; {where}; ratios against vkrnn's host call / its device time", ""])
    for name, driver in dict.fromkeys((record.implementation, record.driver) for group in groups for record in group):
        show([f"{name}: {driver}"])
    names = others(groups)
    lines = table(header(names), (row(records, names) for records in groups))
    show(["", *lines, "", *summary(groups, device)])


if __name__ == "__main__":
    main()
