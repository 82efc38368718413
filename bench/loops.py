"""An LSTM with peepholes in PyTorch: `vkrnn.torch.lstm`, a loop over the steps, and the loop with a compiled cell.

PyTorch's own LSTM has no peepholes, so a loop is what its users write. Times are wall times of one call, forward and
with the gradients of all arguments, in turns; the least of all turns counts.
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

FLOOR = 15.0  # the loops' time over that of vkrnn
NEAR = {"ieee": 1e-4, "tf32": 1e-2}  # errors of the largest value
SIZES = [parse_sizes(text) for text in ("256,64,512", "512,1,256", "100,32,128", "100,64,1024", "1000,8,256")]

Step = Callable[..., tuple[Any, Any]]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add("--device", default="cuda", help="PyTorch's device (%(default)s)")
    add("--sizes", nargs="+", type=parse_sizes, default=SIZES, metavar="T,N,H", help="I = H (default: five sizes)")
    add("--compiler", default="inductor", help="back end of torch.compile (%(default)s)")
    add("--float32", choices=list(NEAR), default="tf32", help="precision of all products (%(default)s)")
    add("--rounds", type=int, default=3, help="turns (%(default)s)")
    return made


def cell(gates: Any, h: Any, c: Any, recurrent: Any, peephole: Any) -> tuple[Any, Any]:
    """Return the next state and cell; gates i, f, z, o, all of which see the cell before the step, as in MPSGraph."""
    i, f, z, o = (gates + h @ recurrent.t() + peephole * c.repeat(1, 4)).chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * z.tanh()
    return o.sigmoid() * c.tanh(), c


@dataclass
class Loops:
    """The tensors of one size, and the calls."""

    torch: Any
    T: int
    N: int
    H: int
    where: str

    def __post_init__(self) -> None:
        """Draw the tensors."""

        def tensor(*shape: int, scale: float) -> Any:
            return (self.torch.randn(shape, device=self.where) * scale).requires_grad_()

        H = self.H
        self.source = tensor(self.T, self.N, H, scale=1.0)
        self.input, self.recurrent = (tensor(4 * H, H, scale=H**-0.5) for _ in range(2))
        self.bias, self.peephole = (tensor(4 * H, scale=0.1) for _ in range(2))
        self.all = [self.source, self.input, self.recurrent, self.bias, self.peephole]

    def ours(self) -> Any:
        """Call vkrnn."""
        function = importlib.import_module("vkrnn.torch").lstm
        return function(
            self.source, self.recurrent, input_weight=self.input, bias=self.bias, peephole=self.peephole
        ).output

    def loop(self, step: Step) -> Any:
        """Call a step after the other."""
        gates = self.source @ self.input.t() + self.bias
        h = c = gates.new_zeros(self.N, self.H)
        outputs = []
        for each in gates.unbind():
            h, c = step(each, h, c, self.recurrent, self.peephole)
            outputs.append(h)
        return self.torch.stack(outputs)

    def results(self, call: Callable[[], Any], *, gradients: bool) -> list[Any]:
        """Return the output or, with `gradients`, those of all arguments."""
        if not gradients:
            with self.torch.no_grad():
                return [call()]
        output = call()
        return list(self.torch.autograd.grad(output, self.all, self.torch.ones_like(output)))


def main() -> None:
    """Measure and print a table."""
    options = parser().parse_args()
    torch = require_torch("bench.loops")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = options.float32 == "tf32"
    rows, least = [], float("inf")
    for sizes, gradients in tqdm(list(itertools.product(options.sizes, (False, True))), leave=False):
        torch.compiler.reset()  # so that each size is compiled for itself
        loops = Loops(torch, sizes.T, sizes.N, sizes.H, options.device)
        compiled = torch.compile(cell, backend=options.compiler)
        calls = {"loop": partial(loops.loop, cell), "compiled": partial(loops.loop, compiled), "vkrnn": loops.ours}
        ways = {name: partial(loops.results, call, gradients=gradients) for name, call in calls.items()}
        times = least_times(torch, ways, NEAR[options.float32], options.rounds, device=options.device)
        ours = times["vkrnn"]
        ratios = [times[name] / ours for name in ("loop", "compiled")]
        least = min(least, *ratios)
        what = "forward + gradients" if gradients else "forward"
        steps = [f"{times[name] / sizes.T * 1e6:.2f}" for name in ("vkrnn", "loop", "compiled")]
        rows.append([f"{sizes.T},{sizes.N},{sizes.H} {what}", *steps, *(f"{ratio:.1f}" for ratio in ratios)])
    where = torch.cuda.get_device_name() if options.device.startswith("cuda") else "CPU"
    show([f"vkrnn {vkrnn.__version__}, torch {torch.__version__}, {where}; {options.float32}, us a step", ""])
    show(table(["T,N,H", "vkrnn", "loop", "compiled", "loop : vkrnn", "compiled : vkrnn"], rows))
    show(["", verdict("the loops' time over that of vkrnn, worst row", least, FLOOR, "times", at_least=True)])


if __name__ == "__main__":
    main()
