"""Host time of small calls of modules: PyTorch's, and those of `vkrnn.torch` with each backend, in turns.

Calls are enqueued without waiting for the device, so a GPU's time does not count unless it is longer than the host's.
The table shows the shortest of all turns. The results of all modules must agree.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import time
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

import vkrnn

from .baseline_torch import require_torch
from .common import show, table, verdict

NEAR = 1e-2  # as products may be computed in TF32
BACKENDS = ("torch", "auto", "vkrnn")
KINDS = ("LSTM", "GRU", "RNN")
# T, whether there are initial states, and whether gradients are computed
CALLS = {
    "forward": (4, False, False),
    "with gradients": (4, False, True),
    "with gradients, also of states": (4, True, True),
    "one step with states": (1, True, False),
}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add("--device", default="cuda", help="PyTorch's device (%(default)s)")
    add("--sizes", nargs=2, type=int, default=[2, 32], metavar=("N", "H"), help="I = H (%(default)s)")
    add("--calls", type=int, default=100, help="calls of a turn (%(default)s)")
    add("--rounds", type=int, default=10, help="turns of each way (%(default)s)")
    return made


class Ways:
    """One kind of call of one kind of module, in all ways."""

    def __init__(self, torch: Any, kind: str, what: str, options: argparse.Namespace) -> None:
        """Draw the tensors and make the modules, which share their weights' numbers."""
        (T, states, self.gradients), (N, H) = CALLS[what], options.sizes
        self._torch, self._cuda = torch, options.device.startswith("cuda")

        def tensor(*shape: int) -> Any:
            return torch.randn(shape, device=options.device).requires_grad_(self.gradients)

        self._source = tensor(T, N, H)
        self._states = [tensor(1, N, H) for _ in range(1 + (kind == "LSTM"))] if states else []
        self._upstream = torch.randn((T, N, H), device=options.device)
        theirs = getattr(torch.nn, kind)(H, H)
        self.modules: dict[str, Any] = {"torch.nn": theirs.to(options.device)}
        for backend in BACKENDS:
            module = getattr(importlib.import_module("vkrnn.torch"), kind)(H, H, backend=backend).to(options.device)
            module.load_state_dict(theirs.state_dict())
            self.modules[backend] = module

    def results(self, module: Any) -> list[Any]:
        """Make a call. Return its output, or the gradients of the input, the parameters and the states."""
        states = (tuple(self._states) if len(self._states) > 1 else self._states[0],) if self._states else ()
        if not self.gradients:
            with self._torch.no_grad():
                return [module(self._source, *states)[0]]
        wanted = [self._source, *module.parameters(), *self._states]
        return list(self._torch.autograd.grad(module(self._source, *states)[0], wanted, self._upstream))

    def check(self) -> None:
        """Exit if a way's results differ from those of PyTorch's module."""
        right = self.results(self.modules["torch.nn"])
        for name, module in self.modules.items():
            found = self.results(module)
            errors = [float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, right, strict=True)]
            if not all(error < NEAR for error in errors):
                raise SystemExit(f"bench.host: {name} differs from torch.nn by {max(errors):.1e} of the largest value")

    def seconds(self, module: Any, calls: int) -> float:
        """Return the host's time of a call."""
        self._wait()
        start = time.perf_counter()
        for _ in range(calls):
            self.results(module)
        found = (time.perf_counter() - start) / calls
        self._wait()
        return found

    def _wait(self) -> None:
        if self._cuda:
            self._torch.cuda.synchronize()


def least_times(ways: Ways, calls: int, rounds: int) -> Mapping[str, float]:
    """Return the least seconds of a call in each way, after a turn that does not count."""
    ways.check()
    times = dict.fromkeys(ways.modules, float("inf"))
    for round_, (name, module) in itertools.product(range(rounds + 1), ways.modules.items()):
        found = ways.seconds(module, calls)
        if round_:
            times[name] = min(times[name], found)
    return times


def main() -> None:
    """Measure and print a table."""
    options = parser().parse_args()
    torch = require_torch("bench.host")
    rows, worst = [], (float("inf"), "")
    for kind, what in tqdm(list(itertools.product(KINDS, CALLS)), unit="row", disable=None, leave=False):
        times = least_times(Ways(torch, kind, what, options), options.calls, options.rounds)
        ratio = times["torch.nn"] / times["auto"]
        worst = min(worst, (ratio, f"{kind} {what}"))
        rows.append([f"{kind} {what}", *(f"{seconds * 1e6:.0f}" for seconds in times.values()), f"{ratio:.2f}"])
    where = torch.cuda.get_device_name() if options.device.startswith("cuda") else "CPU"
    show([f"vkrnn {vkrnn.__version__}, torch {torch.__version__}, {where}; us of the host for a call", ""])
    show(table(["call", "torch.nn", *BACKENDS, "torch.nn : auto"], rows))
    show(["", verdict(f"torch.nn's time : auto's, {worst[1]}", worst[0], 1.0, "times", at_least=True)])


if __name__ == "__main__":
    main()
