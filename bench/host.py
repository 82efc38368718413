"""Host time of small calls of modules: PyTorch's, and those of `vkrnn.torch` with each backend, in turns.

Calls are enqueued without waiting for the device, so a GPU's time does not count unless it is longer than the host's.
The table shows the shortest of all turns. The results of all modules must agree.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped,unused-ignore]

import vkrnn

from .baseline_torch import least_times, require_torch
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


def calls_of(torch: Any, kind: str, what: str, options: argparse.Namespace) -> dict[str, Callable[[], list[Any]]]:
    """Return one kind of call of one kind of module, in all ways, whose weights are the same numbers.

    It returns the output, or the gradients of the input, the parameters and the states.
    """
    (T, with_states, gradients), (N, H) = CALLS[what], options.sizes

    def tensor(*shape: int) -> Any:
        return torch.randn(shape, device=options.device).requires_grad_(gradients)

    source, upstream = tensor(T, N, H), torch.randn((T, N, H), device=options.device)
    states = [tensor(1, N, H) for _ in range(1 + (kind == "LSTM"))] if with_states else []

    def call(module: Any) -> list[Any]:
        given = (tuple(states) if len(states) > 1 else states[0],) if states else ()
        if not gradients:
            with torch.no_grad():
                return [module(source, *given)[0]]
        wanted = [source, *module.parameters(), *states]
        return list(torch.autograd.grad(module(source, *given)[0], wanted, upstream))

    theirs = getattr(torch.nn, kind)(H, H).to(options.device)
    calls = {"torch.nn": partial(call, theirs)}
    for backend in BACKENDS:
        module = getattr(importlib.import_module("vkrnn.torch"), kind)(H, H, backend=backend).to(options.device)
        module.load_state_dict(theirs.state_dict())
        calls[backend] = partial(call, module)
    return calls


def main() -> None:
    """Measure and print a table."""
    options = parser().parse_args()
    torch = require_torch("bench.host")
    rows, worst = [], (float("inf"), "")
    for kind, what in tqdm(list(itertools.product(KINDS, CALLS)), unit="row", disable=None, leave=False):
        ways = calls_of(torch, kind, what, options)
        times = least_times(torch, ways, NEAR, options.rounds, options.calls, device=options.device, enqueued=True)
        ratio = times["torch.nn"] / times["auto"]
        worst = min(worst, (ratio, f"{kind} {what}"))
        rows.append([f"{kind} {what}", *(f"{seconds * 1e6:.0f}" for seconds in times.values()), f"{ratio:.2f}"])
    where = torch.cuda.get_device_name() if options.device.startswith("cuda") else "CPU"
    show([f"vkrnn {vkrnn.__version__}, torch {torch.__version__}, {where}; us of the host for a call", ""])
    show(table(["call", "torch.nn", *BACKENDS, "torch.nn : auto"], rows))
    show(["", verdict(f"torch.nn's time : auto's, {worst[1]}", worst[0], 1.0, "times", at_least=True)])


if __name__ == "__main__":
    main()
