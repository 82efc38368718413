"""Layers with heads and resets on a GPU, beside the fused kernels of FlashRNN, gru-qat and TorchRL.

Rows: FlashRNN's sLSTM in bfloat16 (768 units in 3 to 48 heads), gru-qat's block-diagonal GRU in float32, and TorchRL's
GRU and LSTM with resets at 3 % of the steps. Forward, and forward with the gradients of the source and of all weights.
Libraries that are not installed are left out. Each contender is captured into a CUDA graph, or called if its program
cannot be captured; turns are timed with CUDA events.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import vkrnn

from .baseline_torch import require_torch
from .common import GRAPH, HOST_CALL, show, table, timed
from .graphs import captured, difference

FLASH_RNN = ("cuda_fused", "cuda", "triton_fused")  # its back ends
OURS = "vkrnn"
SLSTM_UNITS, SLSTM_HEADS = 768, (48, 12, 6, 3)
WARM_CALLS = 8


class Way(NamedTuple):
    """A contender's call, which returns its output [T, N, H], and the tensors whose gradients a training step wants."""

    call: Callable[[], Any]
    leaves: Sequence[Any]


class Draw:
    """Draws tensors that require gradients."""

    def __init__(self, torch: Any, where: str, dtype: Any) -> None:
        torch.manual_seed(0)
        self.torch, self.where, self.dtype = torch, where, dtype

    def __call__(self, *shape: int, scale: float = 0.3) -> Any:
        """Return normally distributed numbers."""
        drawn = self.torch.randn(*shape, device=self.where) * scale
        return drawn.to(self.dtype).requires_grad_()

    def copy(self, tensor: Any) -> Any:
        """Return a copy in row-major order, as a leaf of its own."""
        return tensor.detach().contiguous().clone().requires_grad_()


def slstm(
    torch: Any, where: str, heads: int, units: int, *, T: int, N: int, backends: Sequence[str]
) -> Mapping[str, Way]:
    """Return the sLSTM of projected inputs by contender."""
    ours = importlib.import_module("vkrnn.torch")
    draw, H = Draw(torch, where, torch.bfloat16), heads * units
    x, R, b = draw(T, N, 4 * H), draw(4 * H, units, scale=units**-0.5), draw(4 * H)
    descriptor = vkrnn.SLSTMDescriptor(heads=heads)
    ways = {OURS: Way(lambda: ours.slstm(x, R, bias=b, descriptor=descriptor).output, [x, R, b])}
    flash = optional("flashrnn.flashrnn.flashrnn", where)
    if flash is not None:
        theirs = [
            draw.copy(x.view(T, N, 4, heads, units).transpose(0, 1)),
            draw.copy(R.view(4, heads, units, units)),
            draw.copy(b.view(4, heads, units)),
        ]

        def call(backend: str) -> Any:
            states = flash.flashrnn(*theirs, function="slstm", backend=backend, dtype="bfloat16")[0]
            return states[0].transpose(0, 1).reshape(T, N, H)

        ways |= {f"FlashRNN {backend}": Way(partial(call, backend), theirs) for backend in backends}
    return ways


def gru(torch: Any, where: str, heads: int, units: int, *, T: int, N: int) -> Mapping[str, Way]:
    """Return the GRU of projected inputs by contender, and that of vkrnn with a dense recurrent weight."""
    ours = importlib.import_module("vkrnn.torch")
    draw, H = Draw(torch, where, torch.float32), heads * units
    x, R, b = draw(T, N, 3 * H), draw(3 * H, units, scale=units**-0.5), draw(3 * H, scale=0.0)
    dense = draw(3 * H, H, scale=H**-0.5)

    def call(weight: Any, heads: int) -> Any:
        return ours.gru(x, weight, bias=b, descriptor=vkrnn.GRUDescriptor(reset_after=True, heads=heads)).output

    ways = {
        OURS: Way(partial(call, R, heads), [x, R, b]),
        "vkrnn, dense weight": Way(partial(call, dense, 1), [x, dense, b]),
    }
    scan = optional("gru_qat.triton_kernels.scan_blockdiag", where)
    if scan is not None:
        start, blocks = x.new_zeros(N, H), draw.copy(R.view(3, heads, units, units))
        ways["gru-qat"] = Way(lambda: scan.gru_scan_blockdiag(x, start, blocks, b), [x, blocks, b])
    return ways


def resets(torch: Any, where: str, cell: str, H: int, *, T: int, N: int) -> Mapping[str, Way]:
    """Return a layer with resets by contender, and that of vkrnn without."""
    ours = importlib.import_module("vkrnn.torch")
    draw = Draw(torch, where, torch.float32)
    x, starts = draw(T, N, H, scale=1.0), torch.rand(T, N, device=where) < 0.03
    layer = getattr(ours, cell)(H, H, device=where, backend="vkrnn")
    leaves = [x, *layer.parameters()]
    ways = {
        OURS: Way(lambda: layer(x, reset=starts)[0], leaves),
        "vkrnn, no resets": Way(lambda: layer(x)[0], leaves),
    }
    kernels = optional("torchrl.modules.tensordict_module._rnn_triton", where)
    if kernels is not None:
        source, flags = draw.copy(x.transpose(0, 1)), starts.t().contiguous()
        zeros = [x.new_zeros(N, T, H)] * (2 if cell == "LSTM" else 1)
        run = getattr(kernels, f"{cell.lower()}_triton")
        theirs = Way(
            lambda: run(source, *zeros, *leaves[1:], flags, input_precision="tf32")[0].transpose(0, 1),
            [source, *leaves[1:]],
        )
        ways["TorchRL Triton"] = theirs
    return ways


def optional(module: str, where: str) -> Any:
    """Return a module of kernels for GPUs, or None if it is not installed or cannot be used."""
    if where == "cpu":
        return None
    try:
        return importlib.import_module(module)
    except ImportError as reason:
        show([f"{module}: {reason}"])
        return None


def rows(torch: Any, options: argparse.Namespace) -> Iterator[tuple[str, Mapping[str, Way]]]:
    """Yield the rows' names and contenders."""
    T, where = options.steps, options.device
    if "slstm" in options.rows:
        for heads in options.heads:
            units = SLSTM_UNITS // heads
            ways = slstm(torch, where, heads, units, T=T or 1024, N=16, backends=options.backends)
            yield f"sLSTM {heads} x {units}, bfloat16", ways
    if "gru" in options.rows:
        yield "GRU 8 x 64, float32", gru(torch, where, 8, 64, T=T or 64, N=32)
    if "resets" in options.rows:
        for cell in ("GRU", "LSTM"):
            yield f"{cell} 256, resets, TF32", resets(torch, where, cell, 256, T=T or 128, N=128)


def work_of(torch: Any, way: Way, *, gradients: bool) -> Callable[[], list[Any]]:
    """Return a call that returns the output or, with `gradients`, those of the source and the weights."""

    def forward() -> list[Any]:
        with torch.no_grad():
            return [way.call()]

    def both() -> list[Any]:
        output = way.call()
        return list(torch.autograd.grad(output, way.leaves, torch.ones_like(output)))

    return both if gradients else forward


def runner(torch: Any, where: str, work: Callable[[], list[Any]]) -> tuple[Callable[[], float], bool, list[Any]]:
    """Return a turn, which returns the seconds of a call, whether it replays a graph, and the call's results."""
    found = work()
    if where == "cpu":
        return (lambda: timed(work)), False, found
    try:
        run, found = captured(torch, work)
    except Exception:  # noqa: BLE001 - a program that cannot be captured is called instead
        with suppress(Exception):  # CUDA reports the failure to the next call, too
            work()
        torch.cuda.synchronize()
        return (lambda: called(torch, work)), False, found
    return (lambda: run()[GRAPH]), True, found


def called(torch: Any, work: Callable[[], list[Any]]) -> float:
    """Return the seconds of a call that is not captured, on the device."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3


class Turn(NamedTuple):
    """A contender ready for its turns: a call that returns its seconds, whether it replays a graph, and its results."""

    run: Callable[[], float]
    replays: bool
    found: list[Any]


def prepare(torch: Any, where: str, name: str, way: Way, *, gradients: bool) -> Turn | None:
    """Return a contender's turn. If it fails, print why and return None."""
    try:
        return Turn(*runner(torch, where, work_of(torch, way, gradients=gradients)))
    except Exception as reason:  # noqa: BLE001 - the others can be measured
        show([f"FAILED {name}: {type(reason).__name__}: {str(reason)[:200]}"])
        return None


def measure(
    torch: Any, name: str, ways: Mapping[str, Way], options: argparse.Namespace, *, gradients: bool
) -> list[list[str]]:
    """Measure a row's contenders in turns, and return the lines of its table."""
    what = name + (" + gradients" if gradients else "")
    prepared = {
        contender: prepare(torch, options.device, f"{what}, {contender}", way, gradients=gradients)
        for contender, way in ways.items()
    }
    turns = {contender: turn for contender, turn in prepared.items() if turn is not None}
    if OURS not in turns:
        return []
    for _ in range(WARM_CALLS):
        for turn in turns.values():
            turn.run()
    seconds: dict[str, list[float]] = {contender: [] for contender in turns}
    for _ in range(options.rounds):
        for contender, turn in turns.items():
            seconds[contender].append(turn.run())
    lines, ours = [], turns[OURS]
    for contender, turn in turns.items():
        time = median(seconds[contender])
        # Outputs have one layout, gradients those of the library.
        apart = "" if gradients else f"{difference(turn.found, ours.found):.1e}"
        measured = GRAPH if turn.replays else HOST_CALL
        lines.append([what, contender, measured, f"{time * 1e3:.3f}", f"{time / median(seconds[OURS]):.2f}", apart])
        show([f"{what}: {contender} {time * 1e3:.3f} ms"])
    return lines


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--device", default="cuda:0", help="PyTorch's device (%(default)s)")
    made.add_argument("--rows", nargs="+", choices=("slstm", "gru", "resets"), default=["slstm", "gru", "resets"])
    made.add_argument("--heads", nargs="+", type=int, default=SLSTM_HEADS, help="those of the sLSTM (%(default)s)")
    made.add_argument("--backends", nargs="+", choices=FLASH_RNN, default=FLASH_RNN, help="those of FlashRNN (all)")
    made.add_argument("--steps", type=int, help="time steps instead of each row's own number")
    made.add_argument("--rounds", type=int, default=15, help="turns (%(default)s)")
    return made


def main() -> None:
    """Measure and print a table."""
    options = parser().parse_args()
    torch = require_torch("bench.fused")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    lines = []
    for name, ways in rows(torch, options):
        for gradients in (False, True):
            lines += measure(torch, name, ways, options, gradients=gradients)
    place = "CPU" if options.device == "cpu" else torch.cuda.get_device_name()
    show(["", f"vkrnn {vkrnn.__version__}, torch {torch.__version__}, {place}", ""])
    show(table(["row", "contender", "measure", "ms", ": vkrnn", "difference"], lines))


if __name__ == "__main__":
    main()
