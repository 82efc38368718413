"""Data-parallel training of a converted two-layer LSTM on several GPUs, with as many rows on each (weak scaling).

Each process has a GPU and PyTorch's `DistributedDataParallel`. A step is a forward pass, the backward pass in which the
gradients are averaged over all processes, and the optimizer's step. Efficiency is the time of a step on one GPU divided
by that on several. PyTorch's own LSTM is measured for comparison. With ``--backend gloo`` the processes run on the
CPU, which tests the script.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from .baseline_torch import require_torch
from .common import show, table

LAYERS = 2
WARM_UP = 5


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add("--processes", nargs="+", type=int, default=[1, 2], help="numbers of GPUs (%(default)s)")
    add("--backend", choices=["nccl", "gloo"], default="nccl", help="nccl on GPUs, or gloo on the CPU (%(default)s)")
    add("--sizes", nargs=3, type=int, default=[128, 64, 512], metavar=("T", "N", "H"), help="I = H (%(default)s)")
    add("--steps", type=int, default=40, help="timed steps (%(default)s)")
    return made


def work(rank: int, count: int, options: argparse.Namespace, ours: bool, store: str, times: Any) -> None:  # noqa: FBT001
    """Train in one of `count` processes; put the median seconds of a step into `times`."""
    torch = importlib.import_module("torch")
    T, N, H = options.sizes
    on_gpu = options.backend == "nccl"
    where = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(where)
    torch.distributed.init_process_group(options.backend, init_method=f"file://{store}", rank=rank, world_size=count)
    torch.manual_seed(1)
    module = torch.nn.LSTM(H, H, LAYERS).to(where)
    if ours:
        importlib.import_module("vkrnn.torch").convert(module, backend="vkrnn")
    parallel = torch.nn.parallel.DistributedDataParallel(module, device_ids=[rank] if on_gpu else None)
    optimizer = torch.optim.SGD(module.parameters(), 1e-3)
    x = torch.randn(T, N, H, device=where)
    seconds = []
    for _ in range(WARM_UP + options.steps):
        start = time.perf_counter()
        optimizer.zero_grad()
        parallel(x)[0].square().mean().backward()
        optimizer.step()
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    times[rank] = statistics.median(seconds[WARM_UP:])
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def measure(count: int, options: argparse.Namespace, *, ours: bool) -> float:
    """Return the median seconds of a step, of the slowest of `count` processes."""
    multiprocessing = importlib.import_module("torch.multiprocessing")
    with tempfile.TemporaryDirectory() as folder, multiprocessing.Manager() as manager:
        times = manager.dict()
        arguments = (count, options, ours, os.fspath(Path(folder) / "store"), times)
        multiprocessing.spawn(work, arguments, nprocs=count)
        return max(times.values())


def main() -> None:
    """Measure and print a table."""
    options = parser().parse_args()
    require_torch("bench.ddp")
    rows = []
    for ours in (True, False):
        alone = None
        for count in options.processes:
            seconds = measure(count, options, ours=ours)
            alone = alone or seconds
            rows.append(
                ["vkrnn.torch" if ours else "torch", str(count), f"{seconds * 1e3:.2f}", f"{alone / seconds:.2f}"]
            )
    show(table(["implementation", "processes", "ms a step", "efficiency"], rows))


if __name__ == "__main__":
    main()
