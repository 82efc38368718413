"""An LSTM and a GRU that start anew within a batch: one call with a reset, one without, and a loop over the steps.

The loop is that of stable-baselines3 and CleanRL: PyTorch's module for each step, on states that are zeroed first.
Times are wall times of one call, forward and with the gradients of all arguments, in turns; the least of all turns
counts.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

import vkrnn

from .baseline_torch import least_times, require_torch
from .common import show, table, verdict
from .gpu import parse_sizes

FLOOR, MOST = 4.0, 1.05  # the loop's time over that of vkrnn, and that of vkrnn over its time without resets
NEAR = 1e-4  # errors of the largest value
SIZES = [parse_sizes(text) for text in ("128,128,256", "128,8,256")]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add("--device", default="cpu", help="PyTorch's device (%(default)s)")
    add("--sizes", nargs="+", type=parse_sizes, default=SIZES, metavar="T,N,H", help="I = H (default: two sizes)")
    add("--share", type=float, default=0.03, help="of the steps that start anew (%(default)s)")
    add("--rounds", type=int, default=5, help="turns (%(default)s)")
    return made


@dataclass
class Calls:
    """The modules and tensors of one size, and the calls."""

    torch: Any
    cell: str
    T: int
    N: int
    H: int
    share: float
    where: str

    def __post_init__(self) -> None:
        """Draw the tensors."""
        ours = importlib.import_module("vkrnn.torch")
        self.theirs = getattr(self.torch.nn, self.cell)(self.H, self.H, device=self.where)
        self.ours = getattr(ours, self.cell)(self.H, self.H, device=self.where, backend="vkrnn")
        self.ours.load_state_dict(self.theirs.state_dict())
        self.source = self.torch.randn(self.T, self.N, self.H, device=self.where, requires_grad=True)
        self.starts = self.torch.rand(self.T, self.N, device=self.where) < self.share

    def loop(self) -> Any:
        """Call PyTorch's module for each step."""
        count = 2 if self.cell == "LSTM" else 1
        states = [self.source.new_zeros(1, self.N, self.H)] * count
        outputs = []
        for features, start in zip(self.source, self.starts.to(self.source.dtype), strict=True):
            states = [(1.0 - start).view(1, self.N, 1) * state for state in states]
            output, last = self.theirs(features[None], tuple(states) if count == 2 else states[0])
            states = list(last) if count == 2 else [last]
            outputs.append(output)
        return self.torch.cat(outputs)

    def results(self, call: Callable[[], Any], module: Any, *, gradients: bool) -> list[Any]:
        """Return the output or, with `gradients`, those of the source and all parameters."""
        if not gradients:
            with self.torch.no_grad():
                return [call()]
        output = call()
        wanted = [self.source, *module.parameters()]
        return list(self.torch.autograd.grad(output, wanted, self.torch.ones_like(output)))

    def ways(self, *, gradients: bool) -> dict[str, Callable[[], list[Any]]]:
        """Return the three ways. All return the loop's results, because the one without resets has others."""
        results = partial(self.results, gradients=gradients)
        right = results(self.loop, self.theirs)
        return {
            "loop": partial(results, self.loop, self.theirs),
            "resets": partial(results, lambda: self.ours(self.source, reset=self.starts)[0], self.ours),
            "none": lambda: (results(lambda: self.ours(self.source)[0], self.ours), right)[1],
        }


def main() -> None:
    """Measure and print a table."""
    options = parser().parse_args()
    torch = require_torch("bench.resets")
    rows, least, most = [], float("inf"), 0.0
    calls = list(itertools.product(options.sizes, ("LSTM", "GRU"), (False, True)))
    for sizes, cell, gradients in tqdm(calls, leave=False):
        made = Calls(torch, cell, sizes.T, sizes.N, sizes.H, options.share, options.device)
        times = least_times(torch, made.ways(gradients=gradients), NEAR, options.rounds, device=options.device)
        loop, cost = times["loop"] / times["resets"], times["resets"] / times["none"]
        least, most = min(least, loop), max(most, cost)
        what = f"{cell} {sizes.T},{sizes.N},{sizes.H} forward" + (" + gradients" if gradients else "")
        each = [f"{times[name] * 1e3:.2f}" for name in ("resets", "none", "loop")]
        rows.append([what, *each, f"{loop:.1f}", f"{cost:.3f}"])
    where = f"CPU, {torch.get_num_threads()} threads"
    if options.device.startswith("cuda"):
        where = torch.cuda.get_device_name()
    what = f"resets at {options.share:.0%} of the steps, ms a call"
    show([f"vkrnn {vkrnn.__version__}, torch {torch.__version__}, {where}; {what}", ""])
    show(table(["T,N,H", "resets", "none", "loop", "loop : resets", "resets : none"], rows))
    show(["", verdict("the loop's time over that of vkrnn, worst row", least, FLOOR, "times", at_least=True)])
    show([verdict("time with resets over that without, worst row", most, MOST, "times", at_least=False)])


if __name__ == "__main__":
    main()
