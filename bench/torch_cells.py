"""The cells of `vkrnn.torch`, and PyTorch's, on the CPU: a loop over ten steps, as in a decoder.

``lstm`` is the loop under ``torch.inference_mode``. ``lstm + gradients`` is the loop and the gradients of all inputs,
parameters and initial states with respect to every step's output. Each is measured with each number of threads.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import geometric_mean
from typing import Any

import vkrnn

from . import common
from .baseline_torch import TorchCell, require_torch
from .common import HOST_CALL, THREADS, Contender, Problem, Record, Sizes, milliseconds, show, table, timed
from .floors import disturbed
from .graphs import MODULE
from .problems import GATES, Arrays

STEPS = 10
ROWS, HIDDEN = (1, 8, 64), (16, 64, 256, 512)
SMALL = 64  # largest H of small sizes, whose floor is higher
FLOOR, SMALL_FLOOR = 1.0, 1.5  # PyTorch's time / vkrnn's
CELLS = {"single_gate_rnn": "RNNCell", "lstm": "LSTMCell", "gru": "GRUCell"}


class SteppedCell(TorchCell):
    """A cell of PyTorch, or the same converted, that is called step by step."""

    def __init__(self, torch: Any, arrays: Arrays, *, converted: bool, gradients: bool) -> None:
        """Copy everything there."""
        super().__init__(torch, arrays, "cpu", gradients=gradients)
        weights = {name.removesuffix("_l0"): each for name, each in self.module.state_dict().items()}
        self.module = getattr(torch.nn, CELLS[arrays.cell])(arrays.sizes.I, arrays.sizes.H)
        self.module.load_state_dict(weights)
        if converted:
            importlib.import_module(MODULE).convert(self.module)
        self._rows = [row.detach().requires_grad_(gradients) for row in self.source]
        self._above = list(self.upstream)
        self._start = [each.detach()[0].requires_grad_(gradients) for each in self.states]

    def steps(self) -> list[Any]:
        """Return the output of each step, and the gradients if wanted."""
        if not self.gradients:
            with self._torch.inference_mode():
                return self._loop()
        outputs = self._loop()
        wanted = [*self._rows, *self.module.parameters(), *self._start]
        return [*outputs, *self._torch.autograd.grad(outputs, wanted, self._above)]

    def _loop(self) -> list[Any]:
        cell, outputs = self.module, []
        if len(self._start) == 1:
            h = self._start[0]
            for row in self._rows:
                h = cell(row, h)
                outputs.append(h)
            return outputs
        hx = tuple(self._start)
        for row in self._rows:
            hx = cell(row, hx)
            outputs.append(hx[0])
        return outputs

    def work(self) -> list[Any]:
        """Return the results of `steps` as those of a module."""
        found, count = self.steps(), len(self._rows)
        output = self._torch.stack(found[:count]).detach()
        if not self.gradients:
            return [output]
        states = [each[None] for each in found[2 * count + 4 :]]
        return [output, self._torch.stack(found[count : 2 * count]), *found[2 * count : 2 * count + 4], *states]


def problems(torch: Any, cells: Sequence[str], sizes: Sequence[Sizes], threads: Sequence[int]) -> Iterator[Problem]:
    """Yield every cell on every workload, forward first, then with gradients."""
    device = common.open_native(None)
    for count, cell, size in itertools.product(threads, cells, sizes):
        torch.set_num_threads(count)
        threads_text = "1 thread" if count == 1 else f"{count} threads"
        arrays = Arrays.draw(cell, size, states=True)
        for gradients in (False, True):
            found = []
            for name in (MODULE, "torch"):
                own = SteppedCell(torch, arrays, converted=name == MODULE, gradients=gradients)
                driver = f"torch {torch.__version__}, {threads_text}"
                found.append(Contender(name, common.cpu_name(), driver, _run(own), own.answer))
            problem = arrays.problem(device, found, gradients=gradients)
            yield replace(problem, workload=f"{size}, {threads_text}")


def _run(cell: SteppedCell) -> Any:
    return lambda: {HOST_CALL: timed(cell.steps)}


def ratios_of(records: Sequence[Record]) -> tuple[dict[str, float], float, float]:
    """Return the median times, and the ratios of PyTorch's time to vkrnn's: of medians, and of tenth percentiles."""
    times = {record.implementation: record.median for record in records}
    low = {record.implementation: record.p10 for record in records}
    return times, times["torch"] / times[MODULE], low["torch"] / low[MODULE]


def verdicts(groups: Sequence[Sequence[Record]]) -> Iterator[str]:
    """Yield a line for each floor."""
    found = [(ratios_of(records)[1], records[0]) for records in groups]
    small = [one for one in found if int(one[1].workload.split("H=")[1].split(",")[0]) <= SMALL]
    for what, chosen, floor in (("all sizes", found, FLOOR), ("small sizes", small, SMALL_FLOOR)):
        ratio, record = min(chosen, key=lambda one: one[0])
        worst = f"PyTorch's time : vkrnn's, {what}, worst row ({record.op}, {record.workload})"
        yield common.verdict(worst, ratio, floor, "times", at_least=True)
        yield f"geometric mean, {what}: {geometric_mean(ratio for ratio, _ in chosen):.2f}"


def main() -> None:
    """Measure, print a table, say which floors were reached."""
    parser = common.arguments(__doc__ or "")
    parser.add_argument("--cells", nargs="+", choices=list(GATES), default=list(GATES))
    parser.add_argument("--threads", nargs="+", type=int, default=list(range(1, THREADS + 1)))
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS, help="N (%(default)s)")
    parser.add_argument("--hidden", nargs="+", type=int, default=HIDDEN, help="H, and I (%(default)s)")
    options = parser.parse_args()
    torch = require_torch("bench.torch_cells")
    if options.smoke:
        options.rows, options.hidden, options.threads = (3,), (4,), (1,)
    sizes = [Sizes(STEPS, N, H, H) for N, H in itertools.product(options.rows, options.hidden)]
    pace = common.pace_of(options)
    pace = pace if options.smoke else replace(pace, warm_up=0.1, settle=0.01, turn=0.03)
    found = problems(torch, options.cells, sizes, options.threads)
    count = 2 * len(sizes) * len(options.cells) * len(options.threads)
    groups = list(common.measure_all(found, count, pace, options.output))
    show([f"vkrnn {vkrnn.__version__}, torch {torch.__version__}; times of a step", *common.settings(), ""])
    rows = []
    for records in groups:
        times, median, low = ratios_of(records)
        each = (milliseconds(times[name] / STEPS) for name in (MODULE, "torch"))
        rows.append([records[0].op, records[0].workload, *each, f"{median:.2f}", f"{low:.2f}"])
    columns = ["workload", "vkrnn.torch", "torch", "torch : vkrnn.torch", "by 10th percentiles"]
    show([*table(["operation", *columns], rows), "", *verdicts(groups), *disturbed(groups)])


if __name__ == "__main__":
    main()
