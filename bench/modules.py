"""The modules of `vkrnn.torch`, the same calls on NumPy arrays, and PyTorch's modules, on the CPU.

With ``--graphs``, the modules of `vkrnn.torch` and PyTorch's on a CUDA device, both replayed from CUDA graphs.
``lstm`` is the forward call under ``torch.no_grad``, where modules keep packed weights. ``lstm + gradients`` is a
training forward call and the gradients of all inputs. Single steps are measured forward only.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import vkrnn

from . import cells, common, graphs
from .baseline_torch import TorchCell, on_torch, require_torch
from .common import HOST_CALL, Contender, Problem, Record, Sizes, milliseconds, show, table, timed
from .floors import disturbed, host_ratios
from .gpu import DTYPES
from .graphs import MODULE
from .problems import GATES, Arrays, on_vkrnn

FLOORS = {"vkrnn": 0.95, "torch": 1.0}  # other's time / module's, on every row with gradients
FORWARD_FLOOR = 1.0  # PyTorch's time / module's, on every row without gradients
STEPS = tuple(Sizes(1, 1, H, H) for H in (64, 128, 256, 512))


def on_module(torch: Any, arrays: Arrays, device: vkrnn.Device, *, gradients: bool) -> Contender:
    """Return PyTorch's module, converted, as a contender. It computes on the device that calls run on by default."""
    cell = TorchCell(torch, arrays, "cpu", gradients=gradients)
    importlib.import_module(MODULE).convert(cell.module)
    driver = f"{device.driver_version}, torch {torch.__version__}"
    return Contender(MODULE, device.name, driver, lambda: {HOST_CALL: timed(cell.work)}, cell.answer)


def problems(torch: Any, names: Sequence[str], sizes: Sequence[Sizes], device: vkrnn.Device) -> Iterator[Problem]:
    """Yield every cell on every workload, forward first, then with gradients."""
    for cell in names:
        for size in sizes:
            arrays = Arrays.draw(cell, size)
            for gradients in (False,) if size.T == 1 else (False, True):
                found = [
                    on_vkrnn(arrays, device, gradients=gradients),
                    on_module(torch, arrays, device, gradients=gradients),
                    on_torch(torch, arrays, gradients=gradients),
                ]
                yield arrays.problem(device, found, gradients=gradients)


def row(records: Sequence[Record]) -> list[str]:
    """Return a line of the table: times, a module's overhead over a call, and the others' relative times."""
    times = {record.implementation: record.median for record in records if record.measure == HOST_CALL}
    arrays, module, torch = (times[name] for name in ("vkrnn", MODULE, "torch"))
    columns = [*map(milliseconds, (arrays, module, torch)), f"{(module - arrays) * 1e6:.0f} us"]
    return [records[0].op, records[0].workload, *columns, f"{arrays / module:.2f}", f"{torch / module:.2f}"]


def verdicts(groups: Sequence[Sequence[Record]]) -> Iterator[str]:
    """Yield a line for each floor."""
    floors = [(other, floor, True) for other, floor in FLOORS.items()] + [("torch", FORWARD_FLOOR, False)]
    for other, floor, gradients in floors:
        ratios = host_ratios(groups, other, MODULE)
        found = [(ratio, where) for where, ratio in ratios.items() if where[0].endswith("gradients") == gradients]
        if not found:
            continue
        ratio, (op, workload) = min(found)
        what = f"{other}'s time : the module's, worst row ({op}, {workload})"
        yield common.verdict(what, ratio, floor, "times", at_least=True)


def measure_graphs(torch: Any, options: argparse.Namespace, native: vkrnn.Device) -> None:
    """Measure replays of CUDA graphs."""
    where = options.device or "cuda"
    if where != "cpu" and not torch.cuda.is_available():
        raise SystemExit(
            f"torch {torch.__version__} finds no CUDA device; --device cpu tries the program without graphs"
        )
    sizes = cells.sizes_of(options, native, full=cells.PRESETS["wavefront"])
    kinds = ["tf32" if dtype == "float32" and where != "cpu" else dtype for dtype in options.dtypes]
    found = itertools.product(sizes, kinds, options.cells or ("lstm", "gru"), (False, True))
    pace = replace(common.pace_of(options), settle=0.0, turn=0.0)
    pace = pace if options.smoke else replace(pace, warm_up=graphs.WARM_UP)
    graphs.run(torch, where, list(itertools.starmap(graphs.Row, found)), pace, options.output)


def main() -> None:
    """Measure, print a table, say which floors were reached."""
    parser = cells.arguments(__doc__ or "")
    parser.set_defaults(cells=None)
    cells.add_sizes(parser)
    on_cuda = "replay CUDA graphs: LSTM and GRU of the sizes `wavefront`; --device is PyTorch's (cuda)"
    parser.add_argument("--graphs", action="store_true", help=on_cuda)
    parser.add_argument(
        "--dtypes",
        nargs="+",
        choices=DTYPES,
        default=["float32"],
        help="with --graphs; float32 is TF32 there (float32)",
    )
    options = parser.parse_args()
    torch = require_torch("bench.modules")
    if options.graphs:
        measure_graphs(torch, options, common.open_native(None))
        return
    options.cells = options.cells or list(GATES)
    device = common.open_native(options.device)
    sizes = cells.sizes_of(options, device)
    if not (options.sizes or options.smoke):
        sizes = (*STEPS, *sizes)
    count = len(options.cells) * sum(1 if size.T == 1 else 2 for size in sizes)
    found = problems(torch, options.cells, sizes, device)
    with device:
        groups = list(common.measure_all(found, count, common.pace_of(options), options.output))
    show([repr(device), *common.settings(), "", "medians of whole calls", ""])
    columns = ["arrays", "module", "torch's", "module - arrays", "arrays : module", "torch's : module"]
    show([*table(["operation", "workload", *columns], map(row, groups)), "", *verdicts(groups), *disturbed(groups)])


if __name__ == "__main__":
    main()
